"""Debian packages: the control paragraph and the files of one ``.deb``.

A ``.deb`` is an ``ar`` archive of ``debian-binary``, ``control.tar.*`` and ``data.tar.*`` (deb(5)). It is read
here and not by dpkg, so that any host can build the image, without privileges and maintainer scripts.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from nvllm.core import archives
from nvllm.core.archives import ArchiveName
from nvllm.core.refusal import Refused, refuse

_MAGIC = b"!<arch>\n"
_HEADER = 60
"""Bytes of the header of a member of an ar archive; see ar(5)."""
# zstd is not here: Debian does not use it, and the standard library reads it only since Python 3.14.
_PLAIN: Mapping[str, Callable[[io.BytesIO], io.BufferedIOBase]] = {
    "": lambda stream: stream,
    ".xz": lambda stream: lzma.LZMAFile(stream),  # noqa: SIM115 - it reads memory
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream),
}
_EXPECTED = "a whole Debian package (deb(5)), its tars compressed by xz, gzip or not at all"
_CURE = "lock another file in its place: nvllm lock IMAGE --update debs"


def _members(stream: BinaryIO, package: str) -> dict[str, tuple[int, int]]:
    """Return name to (offset, size) of the ``ar`` members of STREAM."""
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise _damaged(package, "no ar archive")
    members: dict[str, tuple[int, int]] = {}
    while header := stream.read(_HEADER):
        if len(header) != _HEADER or header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise _damaged(package, "a torn ar header")
        size = int(header[48:58])
        members[header[:16].decode("ascii", "replace").rstrip().rstrip("/")] = (stream.tell(), size)
        stream.seek(size + size % 2, 1)
    return members


def _damaged(package: str, problem: str) -> Refused:
    return refuse("NV306", package, _EXPECTED, problem, _CURE)


def _tar(path: Path, part: str, package: str) -> bytes:
    """Return the plain tar PART of the package at PATH.

    The whole tar is decompressed first, because only the end of a compressed stream proves that it is undamaged.
    """
    with path.open("rb") as stream:
        members = _members(stream, package)
        suffix = next((suffix for suffix in _PLAIN if part + suffix in members), None)
        if suffix is None:
            raise _damaged(package, "members " + " ".join(members))
        offset, size = members[part + suffix]
        stream.seek(offset)
        data = stream.read(size)
    if len(data) != size:
        raise _damaged(package, f"{len(data)} of {size} bytes of {part}{suffix}")
    return archives.unpacked(_PLAIN[suffix](io.BytesIO(data)))


def _read(path: Path, part: str, package: str) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield every member of the tar PART of the package at PATH with its bytes. Raises Refused NV306."""
    with archives.whole(ArchiveName(package, _EXPECTED, _CURE, part=part)):
        data = _tar(path, part, package)
        # Names are bytes in a package. Decoding them by the host's locale would make the image depend on it.
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in archives.members(tar):
                stream = tar.extractfile(member) if member.isreg() else None
                yield member, stream.read() if stream is not None else b""
            end = data[tar.offset :]
    # tarfile takes a damaged header, except the first, for the end of the archive.
    if not end or end.strip(b"\0"):
        raise _damaged(package, f"{part} that does not end as a tar does")


def control(path: Path, package: str) -> str:
    """Return the control paragraph of the package at PATH, which messages call PACKAGE.

    Raises Refused NV306 if it is no whole package.
    """
    members = _read(path, "control.tar", package)
    texts = [data for member, data in members if member.isreg() and member.name.removeprefix("./") == "control"]
    try:
        return texts[0].decode()
    except (IndexError, UnicodeDecodeError) as error:
        raise _damaged(package, "no control file of UTF-8 text") from error


def files(path: Path, package: str) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield every member of the package at PATH, which messages call PACKAGE, with its bytes, in the package's order.

    Raises Refused NV306, possibly after some members, if PATH is no whole package.
    """
    return _read(path, "data.tar", package)
