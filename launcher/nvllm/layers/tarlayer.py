"""Layers: deterministic, uncompressed tar files.

The same entries give the same bytes for any order, umask, clock, locale and user: sorted by the bytes of the path,
owner 0:0, no user names, few modes, one time. A layer is identified by the sha256 of the uncompressed tar (the
diff_id), because compressed bytes differ between implementations.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, refuse_any

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT = "1"
"""Version of the rules in this module. It is part of every layer's key and of the build hash."""

TOP = "."
"""The path of a layer's top. Without an entry engines give it modes of their own."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One path of a layer: relative, with ``/``, without ``.`` or ``..``; the directory `TOP` is the layer's top.

    CONTENT opens a ``file`` of SIZE bytes, once. TARGET is the target of a ``link``.
    """

    path: str
    kind: Literal["file", "directory", "link"]
    mode: Literal[0o444, 0o555, 0o644, 0o755, 0o777, 0o1777] = 0o644
    size: int = 0
    target: str = ""
    content: Callable[[], BinaryIO] = io.BytesIO


def directory(path: str) -> TarEntry:
    return TarEntry(path, "directory", 0o755)


def link(path: str, target: str) -> TarEntry:
    return TarEntry(path, "link", 0o777, target=target)


def blob(path: str, data: bytes, *, executable: bool = False) -> TarEntry:
    return TarEntry(path, "file", 0o755 if executable else 0o644, len(data), content=lambda: io.BytesIO(data))


def stored(path: Path) -> Callable[[], BinaryIO]:
    """Return what opens the file PATH of this host: the content of an entry."""
    return lambda: path.open("rb")


@dataclass(frozen=True, slots=True)
class Layer:
    """A written layer: DIFF_ID is ``sha256:<hex>`` of the tar at PATH, SIZE its length in bytes."""

    kind: str
    diff_id: str
    size: int
    path: Path


def safe(path: str) -> bool:
    """Return whether PATH may be in a layer: relative, normalized, without empty, ``.`` or ``..`` components."""
    try:
        if encoded(path).decode("utf-8", "surrogateescape") != path:  # two paths with the same bytes
            return False
    except UnicodeEncodeError:
        return False
    return "\0" not in path and all(part not in {"", ".", ".."} for part in path.split("/"))


def encoded(path: str) -> bytes:
    """Return the bytes of PATH in a layer: UTF-8, in any locale.

    Bytes that are not UTF-8 are surrogates in PATH. Raises UnicodeEncodeError for other surrogates.
    """
    return path.encode("utf-8", "surrogateescape")


def complete(entries: Iterable[TarEntry]) -> list[TarEntry]:
    """Return ENTRIES sorted by path bytes, with every parent directory present.

    Raises Refused NV306 for unsafe paths, for two entries with one path, and for a file where another entry needs a
    directory.
    """
    by_path: dict[str, TarEntry] = {}
    refusals: list[Refusal] = []
    for entry in entries:
        if not safe(entry.path) and (entry.path, entry.kind) != (TOP, "directory"):
            printable = entry.path.encode("utf-8", "backslashreplace").decode()
            refusals.append(_unsafe(printable, "a relative path without . or ..", "another path"))
            continue
        other = by_path.get(entry.path)
        if other is not None and not (other.kind == entry.kind == "directory"):
            refusals.append(
                _unsafe(entry.path, "one entry of that path", " and ".join(sorted([other.kind, entry.kind])))
            )
        # A sticky /tmp of one package wins over the plain directory that another one lists.
        if other is None or entry.mode == 0o1777:
            by_path[entry.path] = entry
    for path in list(by_path):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            other = by_path.setdefault(parent, directory(parent))
            if other.kind != "directory":
                refusals.append(_unsafe(parent, f"a directory, because {path} lies below it", f"a {other.kind}"))
    refuse_any(refusals)
    return [by_path[path] for path in sorted(by_path, key=encoded)]


def _unsafe(path: str, expected: str, problem: str) -> Refusal:
    return Refusal("NV306", path, expected, problem, "remove the package that brings it from the spec")


class _Hashing(io.RawIOBase):
    """A file object that hashes what it writes to SINK, so that a layer need not be read again."""

    def __init__(self, sink: BinaryIO) -> None:
        self.sink = sink
        self.hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Buffer) -> int:
        written = self.sink.write(data)
        self.hash.update(memoryview(data)[:written])
        self.size += written
        return written


def write(kind: str, entries: Iterable[TarEntry], *, epoch: int, path: Path, progress: Progress) -> Layer:
    """Write ENTRIES as the layer at PATH, all times being EPOCH, and return it.

    The file appears at PATH only when it is complete. Raises Refused NV306 as :func:`complete` does.
    """
    ordered = complete(entries)
    partial = path.with_name(path.name + f".{os.getpid()}.partial")
    total = sum(entry.size for entry in ordered)
    try:
        with partial.open("wb", buffering=0) as raw, progress.task(f"layer {kind}", total, "B") as task:
            sink = _Hashing(raw)
            # tarfile's own streams copy their whole buffer at every write, and most writes are a header's 512 bytes.
            with (
                io.BufferedWriter(sink, _CHUNK) as buffer,
                tarfile.TarFile(
                    fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", copybufsize=_CHUNK
                ) as tar,
            ):
                for entry in ordered:
                    _add(tar, entry, epoch)
                    task.advance(entry.size)
            os.fsync(raw.fileno())  # before it gets its name: the layer cache knows it by its size alone
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return Layer(kind, "sha256:" + sink.hash.hexdigest(), sink.size, path)


def _add(tar: tarfile.TarFile, entry: TarEntry, epoch: int) -> None:
    info = tarfile.TarInfo(entry.path)
    info.mtime, info.mode = epoch, entry.mode
    if entry.kind == "directory":
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif entry.kind == "link":
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
        tar.addfile(info)
    else:
        info.size = entry.size
        with entry.content() as stream:
            tar.addfile(info, stream)
