"""Programs and libraries of Linux (ELF, elf(5)): which machine one was compiled for."""

from __future__ import annotations

import struct

_MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<4sBB12xH")  # magic, class, byte order, machine
_MAGIC, _BITS_64, _LITTLE_ENDIAN = b"\x7fELF", 2, 1


def machine(data: bytes) -> str | None:
    """Return the kernel's word for the machine that DATA, the start of a file, is code for.

    None for what is no ELF file, and for one of a machine that no image is made for.
    """
    if len(data) < _HEADER.size:
        return None
    magic, bits, order, number = _HEADER.unpack_from(data)
    if (magic, bits, order) != (_MAGIC, _BITS_64, _LITTLE_ENDIAN):
        return None
    return _MACHINES.get(number)
