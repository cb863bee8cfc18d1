"""Archives that somebody else made: read within bounds of bytes and members, and each failure is one refusal.

The sha256 of an archive says who made it, not that it is harmless: kilobytes can unpack to terabytes, a member can
have a size of 30 digits, and a torn archive raises whatever its reader trips over.
"""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nvllm.core import reading
from nvllm.core.refusal import refuse

MOST_MEMBERS = 200_000
"""Most members of an archive. The largest wheels have 20,000."""

DEEPEST = 100
"""Most directories around a member."""

SOURCE = 1 << 30
"""Most bytes in all members of a source archive, and in those of a Debian package."""

WHEEL = 1 << 35
"""Most bytes in all members of a wheel."""

READ_WHOLE = 1 << 28
"""Most bytes of a member that is read into memory by itself."""

_TORN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,  # a compression that the standard library does not know
    RuntimeError,  # an encrypted member; also too deep a recursion
    OverflowError,
    ValueError,  # a number or a name that is none
    MemoryError,
)
"""What readers of the standard library raise for archives that are torn, or that lie about themselves."""

_OPENERS: Mapping[bytes, Callable[[BinaryIO], io.BufferedIOBase]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"\xfd7zXZ": lzma.LZMAFile,
}

_ENDINGS = 16
"""Reads after the end that `tarfile` may need; a member whose size is a lie makes it read there for ever."""


@dataclass(frozen=True, slots=True)
class ArchiveName:
    """An archive as messages name it: LABEL, what was EXPECTED, the CURE, the CODE of its refusal, the PART of it."""

    label: str
    expected: str = "a whole archive"
    cure: str = "fetch it again"
    code: str = "NV306"
    part: str = ""


@contextmanager
def whole(name: ArchiveName) -> Iterator[None]:
    """Turn what a torn or lying archive raises into Refused for NAME."""
    try:
        yield
    except (*_TORN, OSError) as error:
        if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
            raise  # the disk, and not the archive; a seek to before its start is invalid
        problem = (f"{name.part}: " if name.part else "") + (str(error)[:300] or "its end is missing")
        raise refuse(name.code, name.label, name.expected, problem, name.cure) from error


@contextmanager
def tar(path: Path, name: ArchiveName, most: int = SOURCE) -> Iterator[tarfile.TarFile]:
    """Open the tar at PATH, plain or compressed, to be read once from its start; at most MOST bytes are unpacked.

    Raises Refused for NAME, also for what its members raise while the context is open.
    """
    with whole(name), reading.stream(path) as stream:
        head = stream.read(6)
        stream.seek(0)
        # Not tarfile's own detection: it would unpack behind `Bounded`, which would then count packed bytes.
        opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
        plain: BinaryIO | io.BufferedIOBase = stream if opener is None else opener(stream)
        with tarfile.open(fileobj=Bounded(plain, most), mode="r|") as archive:
            yield archive


def members(archive: tarfile.TarFile, most: int = SOURCE) -> Iterator[tarfile.TarInfo]:
    """Yield the members of ARCHIVE. Raises tarfile.ReadError for too many, too deep or sparse ones, or beyond MOST."""
    size = 0
    for count, member in enumerate(archive, start=1):
        size += member.size
        if member.sparse is not None:
            raise tarfile.ReadError(f"{member.name[:80]}: a sparse file")
        _bound(member.name, count, size, most)
        yield member


@contextmanager
def zipped(path: Path, name: ArchiveName, most: int = WHEEL) -> Iterator[zipfile.ZipFile]:
    """Open the zip archive at PATH. Raises Refused for NAME, also for more than MOST bytes in its members."""
    with whole(name), reading.stream(path) as stream, zipfile.ZipFile(stream) as archive:
        check(archive.infolist(), most)
        yield archive


def check(infos: Iterable[zipfile.ZipInfo], most: int = WHEEL) -> None:
    """Raise zipfile.BadZipFile if the members INFOS are too many, too deep, or larger than MOST bytes together.

    A member yields no more bytes than it declares, so that their sum is a bound.
    """
    size = 0
    for count, info in enumerate(infos, start=1):
        size += info.file_size
        if not info.filename:  # zipfile itself breaks on it
            raise zipfile.BadZipFile("a member without a name")
        _bound(info.filename, count, size, most)


def member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the bytes of the member INFO of ARCHIVE. Raises zipfile.BadZipFile for more than READ_WHOLE."""
    if info.file_size > READ_WHOLE:
        raise zipfile.BadZipFile(f"{info.filename[:80]}: {info.file_size} bytes, and at most {READ_WHOLE} are read")
    return archive.read(info)


def unpacked(stream: io.BufferedIOBase, most: int = SOURCE) -> bytes:
    """Return all that STREAM, a decompressor, yields. Raises EOFError for more than MOST bytes, or for a torn end."""
    data = stream.read(most + 1)
    if len(data) > most:
        raise EOFError(f"more than {most} bytes when it is unpacked")
    return data


def _bound(name: str, count: int, size: int, most: int) -> None:
    if count > MOST_MEMBERS:
        raise tarfile.ReadError(f"more than {MOST_MEMBERS} members")
    if size > most:
        raise tarfile.ReadError(f"{name[:80]}: more than {most} bytes when it is unpacked")
    if name.count("/") > DEEPEST:
        raise tarfile.ReadError(f"{name[:80]}: more than {DEEPEST} directories deep")


class Bounded(io.RawIOBase):
    """STREAM up to MOST bytes. Reading on after its end raises, because `tarfile` would do so without end."""

    def __init__(self, stream: BinaryIO | io.BufferedIOBase | io.RawIOBase, most: int) -> None:
        self._stream = stream
        self._left = most
        self._ends = _ENDINGS

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError("more bytes than such an archive may have when it is unpacked")
        if not data:
            self._ends -= 1
            if not self._ends:
                raise tarfile.ReadError("a member that is longer than the archive")
        return data
