"""What a cubin was compiled for, read from its ELF header.

The fields are not documented by NVIDIA. They were read off what ptxas 12.8 and 12.9 write for sm_90, sm_100, sm_120
and sm_121, each plain, with the suffix ``a`` and, where there is one, ``f``.
"""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_CUDA = 190  # e_machine, EM_CUDA
_VERSION, _MACHINE, _FLAGS = 8, 18, 48  # offsets: ABI version (1 byte), e_machine (2 bytes), e_flags (4 bytes)


def target(data: bytes) -> str | None:
    """Return the architecture of the cubin DATA as ptxas is told it, such as ``sm_120a``; None if it is no cubin.

    Code for a family of architectures (``f``) has the same header as plain code, and is returned as plain.
    """
    if len(data) < 64 or not data.startswith(_MAGIC) or struct.unpack_from("<H", data, _MACHINE)[0] != _CUDA:
        return None
    (flags,) = struct.unpack_from("<I", data, _FLAGS)
    if data[_VERSION] >= 8:  # from CUDA 12.8 on, for capability 10.0 and above
        number, specific = flags >> 8 & 0xFF, flags & 0x8
    else:
        number, specific = flags & 0xFF, flags & 0x800
    return f"sm_{number}{'a' if specific else ''}"
