"""Debian packages: the control paragraph and the files of one ``.deb``.

A ``.deb`` is an ``ar`` archive of ``debian-binary``, ``control.tar.*`` and ``data.tar.*`` (deb(5)). Reading it
here, and not with dpkg, lets any host build the image, with no privilege and without running a maintainer
script.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nvllm.refusal import Refusal, Refused

_MAGIC = b"!<arch>\n"
_HEADER = 60


def _members(stream: BinaryIO, shown: str) -> dict[str, tuple[int, int]]:
    """Return name to (offset, size) of the ``ar`` members of STREAM."""
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise Refused([_damaged(shown, "no ar archive")])
    found: dict[str, tuple[int, int]] = {}
    while header := stream.read(_HEADER):
        if len(header) != _HEADER or header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise Refused([_damaged(shown, "a torn ar header")])
        size = int(header[48:58])
        found[header[:16].decode("ascii", "replace").rstrip().rstrip("/")] = (stream.tell(), size)
        stream.seek(size + size % 2, 1)
    return found


def _damaged(shown: str, found: str) -> Refusal:
    return Refusal("NV306", shown, "a Debian package (deb(5), tar compressed by xz, gzip or not)", found, "nvllm lock")


@contextmanager
def _tar(path: Path, part: str) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as stream:
        members = _members(stream, path.name)
        name = next((n for n in members if n in {part, f"{part}.xz", f"{part}.gz"}), None)
        if name is None:
            raise Refused([_damaged(path.name, "members " + " ".join(members))])
        offset, size = members[name]
        stream.seek(offset)
        data = io.BytesIO(stream.read(size))
    with tarfile.open(fileobj=data, mode="r:*") as tar:
        yield tar


def control(path: Path) -> str:
    """Return the control paragraph of the package at PATH. Raises Refused NV306 if it is no package."""
    with _tar(path, "control.tar") as tar:
        for member in tar:
            if member.name.removeprefix("./") == "control":
                stream = tar.extractfile(member)
                assert stream is not None
                return stream.read().decode()
    raise Refused([_damaged(path.name, "no control file")])


def files(path: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield every member of the package at PATH with its bytes, in the package's order."""
    with _tar(path, "data.tar") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            yield member, stream.read() if stream is not None else b""
