"""Device code in a library: which GPUs the modules in it were compiled for.

nvcc puts the device code of each translation unit into one container, and the linker lays all of them into the
section ``.nv_fatbin`` of the library. A container holds the same code several times: as machine code (a cubin) for
one architecture each, and as PTX, which the driver compiles when nothing else fits. Only headers are read here, so
that code which is compressed need not be unpacked.

NVIDIA documents the tools (CUDA Binary Utilities) and not the container. What is read here was found by comparing
containers that NVIDIA's fatbinary wrote, and the libraries of real wheels, with what its cuobjdump lists for them.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nvllm.core.refusal import Refused, refuse

SECTION = ".nv_fatbin"

_ELF = b"\x7fELF\x02\x01"  # 64 bits, little-endian: every platform that has wheels with device code
_ELF_HEADER = struct.Struct("<6s34xQ10xHHH")  # identification, section headers at, size of one, how many, names in
_SECTION_HEADER = struct.Struct("<I20xQQ24x")  # name, offset, size
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of what follows
_ENTRY = struct.Struct("<HHIQ12xI8xQ")  # kind, version, size of this header, size of the code, architecture, flags

_MAGIC = 0xBA55ED50
"""The first word of each container of device code, as nvcc writes it."""
_KINDS: dict[int, Literal["ptx", "cubin"]] = {1: "ptx", 2: "cubin"}
_EXACT, _FAMILY = 0x100000, 0x200000
"""Flags of an entry: code for its architecture alone (``sm_120a``), or for its family (``sm_120f``)."""
_ALIGNMENT = 8
"""Containers follow each other at multiples of so many bytes, with zeros between."""
_NOT_ZERO = re.compile(rb"[^\0]")


@dataclass(frozen=True, slots=True, order=True)
class Code:
    """One compilation of a module: KIND, and the architecture as NVIDIA writes it, such as ``sm_120a``."""

    kind: Literal["ptx", "cubin"]
    architecture: str


Module = tuple[Code, ...]
"""One container: the compilations of one translation unit, of which the driver takes one."""


def modules(data: mmap.mmap | bytes, library: str) -> tuple[Module, ...]:
    """Return the modules in the library DATA, which messages call LIBRARY; none if it has no device code.

    Raises Refused NV212 if DATA is no ELF file of 64 bits, or holds a container that cannot be read whole.
    """
    try:
        return tuple(_modules(data, library))
    except (struct.error, IndexError, OverflowError) as error:  # the last for an offset that no file can have
        raise _unreadable(library, str(error)) from error


def _modules(data: mmap.mmap | bytes, library: str) -> Iterator[Module]:
    read = 0
    for start, size in sorted(_sections(data, library)):
        position, end = start, start + size
        if position < read:
            raise _unreadable(library, f"two sections that overlap at {position:#x}")
        read = end
        if end > len(data):
            raise _unreadable(library, f"a section that ends {end - len(data)} bytes after the file")
        while position + _CONTAINER.size <= end:
            magic, _, header, length = _CONTAINER.unpack_from(data, position)
            if magic == 0:  # padding of the linker between two containers
                position = _after_padding(data, position, end)
                continue
            if magic != _MAGIC or header < _CONTAINER.size or position + header + length > end:
                raise _unreadable(library, f"bytes at {position:#x} that are not a complete container")
            yield tuple(_entries(data, position + header, position + header + length, library))
            position += header + length


def _after_padding(data: mmap.mmap | bytes, position: int, end: int) -> int:
    """Return the next aligned place after POSITION, before END, whose bytes are not all zero, or END."""
    content = _NOT_ZERO.search(data, position, end)
    return (
        end if content is None else position + max(_ALIGNMENT, (content.start() - position) // _ALIGNMENT * _ALIGNMENT)
    )


def _sections(data: mmap.mmap | bytes, library: str) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each section of device code."""
    identification, headers, entry, count, names = _ELF_HEADER.unpack_from(data, 0)
    if identification != _ELF:
        raise _unreadable(library, "no ELF file of 64 bits")
    _, strings, _ = _SECTION_HEADER.unpack_from(data, headers + names * entry)
    for index in range(count):
        name, offset, size = _SECTION_HEADER.unpack_from(data, headers + index * entry)
        section_name = SECTION.encode() + b"\0"
        if data[strings + name : strings + name + len(section_name)] == section_name:
            yield offset, size


def _entries(data: mmap.mmap | bytes, position: int, end: int, library: str) -> Iterator[Code]:
    while position < end:
        kind, _, header, size, architecture, flags = _ENTRY.unpack_from(data, position)
        if header < _ENTRY.size or position + header + size > end:
            raise _unreadable(library, f"an entry at {position:#x} that leaves its container")
        if kind not in _KINDS:
            raise _unreadable(library, f"an entry of kind {kind} at {position:#x}")
        suffix = "a" if flags & _EXACT else "f" if flags & _FAMILY else ""
        yield Code(_KINDS[kind], f"sm_{architecture}{suffix}")
        position += header + size


def _unreadable(library: str, problem: str) -> Refused:
    cure = "use another wheel; if `cuobjdump --list-elf` reads this one, its container is of a newer, unknown kind"
    return refuse("NV212", library, "device code that can be read", problem, cure)
