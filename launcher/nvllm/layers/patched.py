"""The layers of a patch set: one for each file that it changes, with its bytecode, and one for RECORD.

Patches apply to the pinned source; their results replace files of the installed wheel. So each file that a
patch touches must be the same in both before it is replaced, or the wheel is not the commit.

A layer holds one file, so that toggling a patch makes the layers of the files that it touches and no others,
whatever other patches touch them too.
"""

from __future__ import annotations

import csv
import hashlib
import io
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from zipfile import ZipInfo

from nvllm.core.refusal import Refusal, refuse_any
from nvllm.layers import bytecode
from nvllm.layers import tar as tarlayer
from nvllm.layers.bytecode import BytecodeCompiler
from nvllm.layers.tar import TarEntry
from nvllm.layers.wheel import Scheme, Wheel
from nvllm.patches import patching, source
from nvllm.patches.unified import Diff

FORMAT = "2"
"""Version of the rules in this module, beside those of the layers in general. Part of the build hash."""

PACKAGE = "vllm/"

MOST = 64
"""As many layers may have one file each: an engine stacks 127 (overlay2), and the image has others."""

_NATIVE = ("csrc/", "cmake/", "CMakeLists.txt", "setup.py", "pyproject.toml", "rust/")


@dataclass(frozen=True, slots=True)
class Patched:
    """What a patch set makes of the package: path to new bytes, or None where a file goes away.

    MODES has the mode (0o644 or 0o755) of each file that does not go away.
    """

    files: Mapping[str, bytes | None]
    modes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Part:
    """The PATHS of the package that share a layer, and the numbers of the DIFFS that touch them, both in order."""

    paths: tuple[str, ...]
    diffs: tuple[int, ...]


def parts(diffs: Sequence[Diff]) -> tuple[Part, ...]:
    """Return the parts into which DIFFS, in order, divide what they change in the package, in the order of the diffs.

    A part is one file. Only what a rename joins stays together, since one diff then needs both; and where there
    are more than `MOST`, the files that the same diffs touch share a part.
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
    found = (Part(paths, touching) for touching, group in groups.items() for paths in group)
    return tuple(sorted(found, key=lambda part: (part.diffs, part.paths)))


def patched(archive: Path, diffs: Sequence[Diff], wheel: Wheel) -> Patched:
    """Apply DIFFS, in order, to the source ARCHIVE and return what changes in the installed package.

    Raises Refused: NV301 for hunks that do not apply or that only a compiler could carry out, NV208 for files
    that differ between the source and WHEEL.
    """
    wanted = sorted({path for diff in diffs for path in diff.paths})
    pristine = source.archive(archive, wanted)
    changes = patching.apply_all(pristine, diffs)
    installed = {info.filename: info for info in wheel.zip.infolist()}
    refusals = [
        Refusal(
            "NV301",
            path,
            "a patch of Python files in vllm/",
            "a file that has to be compiled",
            "build the wheel by the native path: docker build --target native",
        )
        for path in changes
        if path.startswith(_NATIVE)
    ]
    for path in wanted:
        before = pristine.read(path)
        if not path.startswith(PACKAGE):
            continue
        found = wheel.read(installed[path]) if path in installed else None
        if found != before:
            refusals.append(_not_the_commit(path, before, found, wheel.filename))
    refuse_any(refusals)
    files = {path: data for path, data in changes.items() if path.startswith(PACKAGE)}
    return Patched(files, _modes(diffs, installed, files))


def _modes(
    diffs: Sequence[Diff], installed: Mapping[str, ZipInfo], files: Mapping[str, bytes | None]
) -> dict[str, int]:
    """Return the modes of FILES: the one that the last diff names, else that of the installed file it comes from."""
    modes = {path: 0o755 if info.external_attr >> 16 & 0o100 else 0o644 for path, info in installed.items()}
    for diff in diffs:
        for file in diff.files:
            if file.new is not None:
                modes[file.new] = file.new_mode or modes.get(file.old or "", 0o644)
    return {path: modes[path] for path, data in files.items() if data is not None}


def _not_the_commit(path: str, expected: bytes | None, found: bytes | None, wheel: str) -> Refusal:
    return Refusal(
        "NV208",
        f"{wheel}: {path}",
        f"the pinned source's file, sha256 {hashlib.sha256(expected).hexdigest()[:16]}"
        if expected is not None
        else "no such file, as in the pinned source",
        f"sha256 {hashlib.sha256(found).hexdigest()[:16]}" if found is not None else "no such file",
        "pin the wheel of the commit, or build the wheel from the source by the native path",
    )


def entries(
    patched: Patched, paths: Collection[str], scheme: Scheme, interpreter: BytecodeCompiler
) -> Iterator[TarEntry]:
    """Yield what PATHS of PATCHED put into a layer: files, whiteouts, bytecode.

    One process compiles one file, so its bytecode is the same whatever else changes.
    """
    with tempfile.TemporaryDirectory(prefix="nvllm-patch-") as scratch:
        copy, out = Path(scratch, "module.py"), Path(scratch, "bytecode.zip")
        for path in sorted(patched.files.keys() & set(paths)):
            place, data = f"{scheme.site}/{path}", patched.files[path]
            if data is None:
                yield _whiteout(place)
                if path.endswith(".py"):
                    yield _whiteout(interpreter.cached(place))
                continue
            yield tarlayer.blob(place, data, executable=patched.modes[path] == 0o755)
            if path.endswith(".py"):
                copy.write_bytes(data)
                interpreter.compile(None, {place: str(copy)}, out)
                yield from bytecode.entries(out)


def _whiteout(place: str) -> TarEntry:
    """Return the entry by which a layer takes a file of a lower layer away (OCI image specification)."""
    directory, _, name = place.rpartition("/")
    return tarlayer.blob(f"{directory}/.wh.{name}", b"")


def record(text: str, files: Mapping[str, bytes | None]) -> str:
    """Return the RECORD TEXT of the distribution once FILES replace or take away some of its files, or add others.

    The lines of the package lose hash and size, as the recording format allows: so RECORD, a third of a
    megabyte, is another one only when a file comes or goes, and says nothing that is not so.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row and files.get(row[0], b"") is not None]
    there = {row[0] for row in rows}
    added = [[path] for path, data in sorted(files.items()) if data is not None and path not in there]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [row[0], "", ""] if row[0].startswith(PACKAGE) else row for row in (*rows, *added)
    )
    return out.getvalue()
