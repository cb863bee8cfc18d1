"""Source trees that patches apply to: a directory, a source archive, and changes over either."""

from __future__ import annotations

import stat
import tarfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from nvllm.core import archives, reading
from nvllm.core.archives import ArchiveName
from nvllm.core.refusal import Refusal, refuse_any


class SourceTree(Protocol):
    """The files of one version of a source, by their path from its root."""

    def read(self, path: str) -> bytes | None:
        """Return the bytes of the regular file at PATH, None if there is none."""


class DirectoryTree:
    """A tree on disk. Anything but a regular file (a link, a directory) counts as missing."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        file = self._root / path
        try:
            return reading.unlinked(file, reading.SOURCE) if stat.S_ISREG(file.lstat().st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return None


class Overlay:
    """A tree with CHANGED files over another tree; None removes a file."""

    def __init__(self, below: SourceTree, changed: Mapping[str, bytes | None]) -> None:
        self._below = below
        self._changed = changed

    def read(self, path: str) -> bytes | None:
        return self._changed[path] if path in self._changed else self._below.read(path)


class ArchiveTree:
    """Chosen files of a source archive, held in memory.

    A compressed tar can only be read from its start, so the wanted paths are named beforehand and read in one pass.
    Reading another path raises KeyError.
    """

    def __init__(self, files: Mapping[str, bytes | None]) -> None:
        self._files = files

    def read(self, path: str) -> bytes | None:
        return self._files[path]


def archive(path: Path, paths: Collection[str]) -> ArchiveTree:
    """Return the PATHS files of the source archive at PATH; the archive's one top directory is stripped.

    Raises Refused NV306 if a wanted path is not a regular file or is in it twice, and NV108 if PATH is not a complete
    tar archive.
    """
    files: dict[str, bytes | None] = dict.fromkeys(paths)
    refusals: list[Refusal] = []
    whole = ArchiveName(str(path), "a whole source archive (.tar.gz)", "fetch the archive again", "NV108")
    with archives.tar(path, whole) as tar:
        for member in archives.members(tar):
            name = member.name.partition("/")[2]
            if name not in files:
                continue
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None or files[name] is not None:
                refusals.append(_unsafe(path, member))
            else:
                files[name] = stream.read()
    refuse_any(refusals)
    return ArchiveTree(files)


def texts(path: Path, suffixes: tuple[str, ...]) -> dict[str, bytes]:
    """Return every regular file of the source archive at PATH whose path ends with one of SUFFIXES, by path.

    The archive's one top directory is stripped. Raises Refused NV108 if PATH is not a complete tar archive.
    """
    whole = ArchiveName(str(path), "a whole source archive (.tar.gz)", "fetch the archive again", "NV108")
    return files(path, whole, lambda name: name.endswith(suffixes))


def files(path: Path, whole: ArchiveName, chosen: Callable[[str], bool]) -> dict[str, bytes]:
    """Return those regular files of the source archive at PATH that are CHOSEN by their path, by path.

    The archive's one top directory is stripped. Raises Refused, with the code of WHOLE, if it is no whole tar archive.
    """
    contents: dict[str, bytes] = {}
    with archives.tar(path, whole) as tar:
        for member in archives.members(tar):
            name = member.name.partition("/")[2]
            stream = tar.extractfile(member) if member.isreg() and chosen(name) else None
            if stream is not None:
                contents[name] = stream.read()
    return contents


def _unsafe(path: Path, member: tarfile.TarInfo) -> Refusal:
    kind = "a second member of that name" if member.isreg() else "a link or a special file"
    cure = "use the source archive that the lock names; this one was not made by a release"
    return Refusal("NV306", f"{path}: {member.name}", "a regular file, once", kind, cure)
