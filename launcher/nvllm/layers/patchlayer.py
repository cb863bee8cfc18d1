"""The layers of a patch set: one for each file that it changes, with its bytecode, and one for RECORD.

Patches apply to the pinned source, and the results replace files of the installed wheel. So each file that a patch
touches must be the same in both before it is replaced; if not, the wheel is not of the commit.

A layer holds one file, so that switching a patch on or off changes only the layers of the files that it touches.
"""

from __future__ import annotations

import csv
import hashlib
import io
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from zipfile import ZipInfo

from nvllm.core.refusal import Refusal, refuse_any
from nvllm.layers import bytecode, tarlayer
from nvllm.layers.bytecode import BytecodeCompiler
from nvllm.layers.tarlayer import TarEntry
from nvllm.layers.wheel import Scheme, Wheel
from nvllm.patches import patching, source
from nvllm.patches.unified import Diff

FORMAT = "2"
"""Version of the rules in this module, beside those of the layers in general. Part of the build hash."""

PACKAGE = "vllm/"

MOST = 64
"""The most layers with one file each: an engine supports 127 layers (overlay2), and the image has others."""

_NATIVE = ("csrc/", "cmake/", "CMakeLists.txt", "setup.py", "pyproject.toml", "rust/")


@dataclass(frozen=True, slots=True)
class Patched:
    """The files of the package that a patch set changes: path to new bytes, None for a removed file.

    MODES has the mode (0o644 or 0o755) of each file that remains. COMPILED are the changed files that are compiled.
    """

    files: Mapping[str, bytes | None]
    modes: Mapping[str, int]
    compiled: Mapping[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PatchedPart:
    """The PATHS of the package that share a layer, and the indexes of the DIFFS that touch them, both sorted."""

    paths: tuple[str, ...]
    diffs: tuple[int, ...]


def parts(diffs: Sequence[Diff]) -> tuple[PatchedPart, ...]:
    """Return the parts, one for each layer, of the files in the package that DIFFS change, in the order of the diffs.

    A part is one file, or the two files of a rename. If there would be more than `MOST` parts, files that the same
    diffs touch share one.
    """
    joined: dict[str, frozenset[str]] = {}
    for diff in diffs:
        for file in diff.files:
            together = frozenset(file.paths).union(*(joined.get(path, ()) for path in file.paths))
            joined |= dict.fromkeys(together, together)
    groups: dict[tuple[int, ...], list[tuple[str, ...]]] = {}
    for together in set(joined.values()):
        paths = tuple(sorted(path for path in together if path.startswith(PACKAGE)))
        touching = tuple(number for number, diff in enumerate(diffs) if not together.isdisjoint(diff.paths))
        if paths:
            groups.setdefault(touching, []).append(paths)
    if sum(map(len, groups.values())) > MOST:
        groups = {touching: [tuple(sorted(chain.from_iterable(group)))] for touching, group in groups.items()}
    parts = (PatchedPart(paths, touching) for touching, group in groups.items() for paths in group)
    return tuple(sorted(parts, key=lambda part: (part.diffs, part.paths)))


def patched(archive: Path, diffs: Sequence[Diff], wheel: Wheel, compiled: tuple[str, ...] = ()) -> Patched:
    """Apply DIFFS, in order, to the source ARCHIVE and return the changed files of the installed package.

    Files below COMPILED are compiled for a layer of their own. Raises Refused: NV301 for hunks that do not apply and
    for other files that have to be compiled, NV208 for files that differ between the source and WHEEL.
    """
    touched = sorted({path for diff in diffs for path in diff.paths})
    pristine = source.archive(archive, touched)
    changes = patching.apply_all(pristine, diffs)
    installed = {info.filename: info for info in wheel.zip.infolist()}
    cure = "say in .vllm.native of the spec how extensions are compiled, or: docker build --target native"
    refusals = [
        Refusal("NV301", path, "a patch of Python files in vllm/", "a file that has to be compiled", cure)
        for path in changes
        if path.startswith(_NATIVE) and not path.startswith(compiled)
    ]
    for path in touched:
        before = pristine.read(path)
        if not path.startswith(PACKAGE):
            continue
        in_wheel = wheel.read(installed[path]) if path in installed else None
        if in_wheel != before:
            refusals.append(_not_the_commit(path, before, in_wheel, wheel.filename))
    refuse_any(refusals)
    files = {path: data for path, data in changes.items() if path.startswith(PACKAGE)}
    sources = {path: data for path, data in changes.items() if path.startswith(compiled)}
    return Patched(files, _modes(diffs, installed, files), sources)


def _modes(
    diffs: Sequence[Diff], installed: Mapping[str, ZipInfo], files: Mapping[str, bytes | None]
) -> dict[str, int]:
    """Return the modes of FILES: the one in the last diff that names one, else that of the installed file."""
    modes = {path: 0o755 if info.external_attr >> 16 & 0o100 else 0o644 for path, info in installed.items()}
    for diff in diffs:
        for file in diff.files:
            if file.new is not None:
                modes[file.new] = file.new_mode or modes.get(file.old or "", 0o644)
    return {path: modes[path] for path, data in files.items() if data is not None}


def _not_the_commit(path: str, pristine: bytes | None, installed: bytes | None, wheel: str) -> Refusal:
    expected, content = "no such file, as in the pinned source", "no such file"
    if pristine is not None:
        expected = f"the pinned source's file, sha256 {hashlib.sha256(pristine).hexdigest()[:16]}"
    if installed is not None:
        content = f"sha256 {hashlib.sha256(installed).hexdigest()[:16]}"
    cure = "pin the wheel of the commit, or build the wheel from the source by the native path"
    return Refusal("NV208", f"{wheel}: {path}", expected, content, cure)


def entries(
    patched: Patched, paths: Collection[str], scheme: Scheme, interpreter: BytecodeCompiler
) -> Iterator[TarEntry]:
    """Yield the layer entries for PATHS of PATCHED: files, whiteouts, bytecode.

    Each file is compiled by a process of its own, so its bytecode does not depend on the other files.
    """
    with tempfile.TemporaryDirectory(prefix="nvllm-patch-") as scratch:
        copy, out = Path(scratch, "module.py"), Path(scratch, "bytecode.zip")
        for path in sorted(patched.files.keys() & set(paths)):
            target, data = f"{scheme.site}/{path}", patched.files[path]
            if data is None:
                yield whiteout(target)
                if path.endswith(".py"):
                    yield whiteout(interpreter.cached(target))
                continue
            yield tarlayer.blob(target, data, executable=patched.modes[path] == 0o755)
            if path.endswith(".py"):
                copy.write_bytes(data)
                interpreter.compile(None, {target: str(copy)}, out)
                yield from bytecode.entries(out)


def content(layer: Path, paths: Collection[str], scheme: Scheme) -> dict[str, bytes | None]:
    """Return those of PATHS that LAYER, written from `entries`, has: path to bytes, None for a removed file."""
    files: dict[str, bytes | None] = dict.fromkeys(paths)
    with tarfile.open(layer) as tar:
        for member in tar:
            path = member.name.removeprefix(f"{scheme.site}/")
            if path in files:
                stream = tar.extractfile(member)
                assert stream is not None, path
                files[path] = stream.read()
    return files


def whiteout(target: str) -> TarEntry:
    """Return the entry that removes the file TARGET of a lower layer (OCI image specification)."""
    directory, slash, name = target.rpartition("/")
    return tarlayer.blob(f"{directory}{slash}.wh.{name}", b"")


def record(text: str, files: Mapping[str, bytes | None]) -> str:
    """Return the RECORD TEXT of the distribution after FILES replace, remove (None) or add files.

    The lines of the package lose hash and size, as the format allows. So RECORD, a third of a megabyte, changes only
    when a file is added or removed.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row and files.get(row[0], b"") is not None]
    there = {row[0] for row in rows}
    added = [[path] for path, data in sorted(files.items()) if data is not None and path not in there]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [row[0], "", ""] if row[0].startswith(PACKAGE) else row for row in (*rows, *added)
    )
    return out.getvalue()
