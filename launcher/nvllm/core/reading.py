"""Files that a person or another program wrote: opened once, and read only if regular and of a size that fits.

A name can stand for a FIFO, which blocks who opens it, for a device without an end, or for gigabytes. Other modules
read such files only through this one; `tests/unit/test_package_rules.py` checks that.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import shlex
import stat
from pathlib import Path
from typing import BinaryIO

from nvllm.core.refusal import Refusal, Refused

MB = 1_000_000

SPEC = SERIES = 250_000
"""The largest file of each format, in bytes. A spec has 10 kB, a series 20 kB."""

CONFIGURATION = 1 * MB

PATCH = PAGE = 16 * MB
"""A patch is text that a person has written; a page is what an index lists of one package."""

LOCK = MANIFEST = STATE = 64 * MB
"""A lock has 0.1 MB; a manifest lists each file of a cache; a state file is whatever nvllm keeps for itself."""

JOURNAL = LOG = SOURCE = 256 * MB

NOT_REGULAR = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a directory",
}
"""What stands in the place of a regular file, by the kind in its mode."""

_UNUSABLE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EINVAL,
    errno.EFBIG,
    errno.ENXIO,
    errno.EIO,
    errno.ESTALE,
}
"""What an OSError may say about a file that somebody else put there."""


def content(path: Path, most: int) -> bytes:
    """Return the content of the regular file PATH, which has at most MOST bytes.

    Raises OSError; its ``strerror`` says what is there instead: no file, a FIFO, a device, a larger file.
    """
    return _content(path, most, 0)


def unlinked(path: Path, most: int) -> bytes:
    """Return what `content` does. Raises OSError also if PATH is a link, which another user may have placed."""
    return _content(path, most, os.O_NOFOLLOW)


def stream(path: Path) -> BinaryIO:
    """Return the regular file PATH, of any size, open. Raises OSError as `content` does."""
    return _opened(path, 0)


def text(path: Path, most: int) -> str:
    """Return the UTF-8 text of the regular file PATH, as `content` does. Raises UnicodeDecodeError for other bytes."""
    return content(path, most).decode()


def listed(directory: Path, pattern: str) -> list[Path]:
    """Return the entries of DIRECTORY whose names match PATTERN, sorted; none if there is no such directory.

    Raises OSError if it cannot be read. `Path.glob` would return nothing then.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(names) if fnmatch.fnmatch(name, pattern)]


def required(path: Path, most: int, label: str) -> bytes:
    """Return the content of PATH, which messages call LABEL. Raises Refused NV109 if there is no such file."""
    try:
        return content(path, most)
    except OSError as error:
        raise refused(label, error) from error


def refused(label: str, error: OSError) -> Refused:
    """Return the refusal NV109 of the file that messages call LABEL, because of ERROR."""
    cures = {
        errno.ENOENT: f"write {label}, or name another file",
        errno.EACCES: shlex.join(["chmod", "u+r", label]),
        errno.EFBIG: shlex.join(["ls", "-l", label]),
        errno.ENAMETOOLONG: "use a shorter name",
    }
    cure = cures.get(error.errno or 0, shlex.join(["ls", "-l", label]))
    return Refused([Refusal("NV109", label, "a regular file that can be read", error.strerror or str(error), cure)])


def unusable(error: OSError) -> Refused | None:
    """Return NV109 if ERROR is about a file or directory of a kind, name or access that nvllm cannot use."""
    if error.errno not in _UNUSABLE or error.filename is None:
        return None
    return refused(os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename), error)


def _content(path: Path, most: int, flags: int) -> bytes:
    with _opened(path, flags) as stream:
        size, data = os.fstat(stream.fileno()).st_size, b""
        if size <= most:  # a file of /proc has no size, and another one can grow
            data = stream.read(most + 1)
    if max(size, len(data)) > most:
        raise OSError(errno.EFBIG, f"{max(size, len(data))} bytes, and at most {most} are read", str(path))
    return data


def _opened(path: Path, flags: int) -> BinaryIO:
    # O_NONBLOCK: a FIFO would wait for its writer. O_NOCTTY: a terminal would become this process's own.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    except ValueError as error:  # a name that no file system takes, from inside a document
        raise OSError(errno.EINVAL, "a name with a NUL or half a surrogate pair", str(path)) from error
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "a socket, or a device", str(path)) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, NOT_REGULAR[stat.S_IFMT(mode)], str(path))
    return os.fdopen(descriptor, "rb")
