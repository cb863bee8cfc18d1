"""ELF files (elf(5)): the machine that a program or library was compiled for."""

from __future__ import annotations

import struct

_MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<4sBB12xH")  # magic, class, byte order, machine
_MAGIC, _BITS_64, _LITTLE_ENDIAN = b"\x7fELF", 2, 1


def machine(data: bytes) -> str | None:
    """Return the machine, as `uname -m` prints it, that DATA, the start of a file, has code for.

    None if it is not a 64-bit ELF file, or for a machine that no image supports.
    """
    if len(data) < _HEADER.size:
        return None
    magic, bits, order, number = _HEADER.unpack_from(data)
    if (magic, bits, order) != (_MAGIC, _BITS_64, _LITTLE_ENDIAN):
        return None
    return _MACHINES.get(number)
