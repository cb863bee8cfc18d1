"""fs-verity: the kernel's own guard of a file's bytes, where the file system has it. Tried, never assumed.

After it is enabled, the kernel refuses every write to the file, and fails every read of bytes that are not the
enabled ones. ext4 without the feature, tmpfs and most others do not have it; a file system says so only when
asked for a real file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

# Of linux/fsverity.h, the same on every architecture that Linux gives this layout of request numbers.
_ENABLE = 0x40806685
_VERSION, _SHA256, _BLOCK = 1, 1, 4096
_ARGUMENT = struct.pack("=IIIIQIIQ11Q", _VERSION, _SHA256, _BLOCK, 0, 0, 0, 0, 0, *[0] * 11)

_ABSENT = frozenset(
    {errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES}
)
"""What is answered where the file system, the kernel or a container's filter has none, or none of this kind."""


def enable(path: Path) -> bool:
    """Enable fs-verity for the file PATH, and return whether it is guarded now.

    Nobody may have the file open for writing, and its owner must be able to write it. Raises OSError for what
    is no answer to the question, such as a full disk.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _ENABLE, _ARGUMENT)
    except OSError as error:
        if error.errno in _ABSENT:
            return False
        raise
    finally:
        os.close(descriptor)
    return True
