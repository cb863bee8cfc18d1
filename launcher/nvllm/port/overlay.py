"""What a development tree changes of an image: the files of vLLM's package that it has otherwise."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse_any
from nvllm.layers.patchlayer import PACKAGE, Patched
from nvllm.layers.wheel import Wheel
from nvllm.patches import patching, seriesfile
from nvllm.patches.source import DirectoryTree, Overlay
from nvllm.patches.unified import Diff

DOMAIN = "nvllm.dev-difference/1"
_NATIVE = (*seriesfile.NATIVE, *seriesfile.BUILD_FILES, "rust/")
_COMPILED = (".so", ".cu", ".cuh", ".c", ".cpp", ".h", ".hpp")


@dataclass(frozen=True, slots=True)
class TreeDifference:
    """The files of vLLM's package that a tree has otherwise than an image. BESIDE are paths that no image has."""

    patched: Patched
    beside: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(self.patched.files))

    @property
    def digest(self) -> str:
        """The sha256 of what the tree has there."""
        files: dict[str, Json] = {
            path: None if data is None else [hashlib.sha256(data).hexdigest(), self.patched.modes[path]]
            for path, data in self.patched.files.items()
        }
        return canonical.digest(DOMAIN, files)


class _InstalledTree:
    """The files of the open WHEEL."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._members = {info.filename: info for info in wheel.zip.infolist()}

    def read(self, path: str) -> bytes | None:
        return self._wheel.read(self._members[path]) if path in self._members else None


def difference(
    directory: Path,
    changed: Collection[str],
    pinned: Collection[str],
    diffs: Sequence[Diff],
    wheel: Wheel,
    differs: Collection[str] = (),
) -> TreeDifference:
    """Return what the work tree in DIRECTORY has otherwise than the image of WHEEL and the patches DIFFS.

    CHANGED are the paths in which the tree differs from the pinned source, PINNED those of them that this source has.
    Raises Refused NV611 for a file that is compiled, for one that the source has and the wheel lacks or, being among
    DIFFERS, has otherwise, and for a link.
    """
    own = [replace(diff, files=tuple(file for file in diff.files if _packaged(file.paths))) for diff in diffs]
    installed, tree = _InstalledTree(wheel), DirectoryTree(directory)
    image = Overlay(installed, patching.apply_all(installed, own))
    patched = {path for diff in diffs for path in diff.paths}
    changes = {path: tree.read(path) for path in sorted({*changed, *patched}) if tree.read(path) != image.read(path)}
    lacking = {path for path in pinned if path not in patched and installed.read(path) is None}.union(differs)
    native = [path for path in sorted(changed) if path.startswith(_NATIVE)]  # no wheel has them, so none can differ
    refuse_any(_unfit(directory, [*native, *(path for path in changes if _packaged([path]))], lacking))
    files = {path: data for path, data in changes.items() if _packaged([path])}
    modes = {path: _mode(directory / path) for path, data in files.items() if data is not None}
    beside = (path for path in {*changed} - patched if not _packaged([path]))
    return TreeDifference(Patched(files, modes), tuple(sorted(beside)))


def _packaged(paths: Collection[str]) -> bool:
    return any(path.startswith(PACKAGE) for path in paths)


def _mode(path: Path) -> int:
    return 0o755 if os.access(path, os.X_OK) else 0o644


def _unfit(directory: Path, paths: Sequence[str], lacking: Collection[str]) -> Iterator[Refusal]:
    expected = "files that can lie over those of the image"
    for path in paths:
        where = f"{directory}/{path}"
        if path.startswith(_NATIVE) or path.endswith(_COMPILED):
            cure = "compile vLLM with it, by the native path of the Dockerfile"
            yield Refusal("NV611", where, expected, "a file that is compiled into the wheel", cure)
        elif (directory / path).is_symlink():
            yield Refusal("NV611", where, expected, "a link", "put a copy of the file in its place")
        elif path in lacking:
            cure = "move the change into a file that the wheel has as the source has it"
            problem = "a file that the wheel, and so the image, lacks or has otherwise than the source"
            yield Refusal("NV611", where, expected, problem, cure)
