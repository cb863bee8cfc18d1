"""ELF files (elf(5)): the machine that a program was compiled for, and the dynamic loader that starts it."""

from __future__ import annotations

import struct

_MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<4sBB12xH")  # magic, class, byte order, machine
_MAGIC, _BITS_64, _LITTLE_ENDIAN = b"\x7fELF", 2, 1
_PROGRAM_HEADERS = struct.Struct("<32xQ14xHH")  # where they begin, size of one, their number
_PROGRAM_HEADER = struct.Struct("<I4xQ16xQ")  # type, offset in the file, size in the file
_INTERPRETER = 3  # PT_INTERP


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


def with_loader(data: bytes, loader: str) -> bytes:
    """Return DATA, a 64-bit program of a machine that images support, so that the kernel starts it by LOADER, a path.

    The path is put at the end of the file. Raises ValueError if DATA is no such program, or is linked statically.
    """
    if machine(data) is None or len(data) < _PROGRAM_HEADERS.size:
        raise ValueError("not a program for a machine that images support")
    first, width, count = _PROGRAM_HEADERS.unpack_from(data)
    if count and (width < _PROGRAM_HEADER.size or len(data) < first + width * count):
        raise ValueError("a program whose headers are cut off")
    path = loader.encode() + b"\0"
    for at in (first + width * number for number in range(count)):
        kind, _, _ = _PROGRAM_HEADER.unpack_from(data, at)
        if kind == _INTERPRETER:
            made = bytearray(data) + path
            struct.pack_into("<Q", made, at + 8, len(data))
            struct.pack_into("<Q", made, at + 32, len(path))
            return bytes(made)
    raise ValueError("a program without a loader")
