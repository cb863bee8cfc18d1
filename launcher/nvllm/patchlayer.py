"""The patches layer: the Python files that a patch set changes, their bytecode, and their RECORD lines.

Patches apply to the pinned source; their results replace files of the installed wheel. So each file that a
patch touches must be the same in both before it is replaced, or the wheel is not the commit.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipInfo

from nvllm import bytecode, patching, source, tarlayer
from nvllm.bytecode import Compiler
from nvllm.refusal import Refusal, refuse_any
from nvllm.tarlayer import Entry
from nvllm.unified import Diff
from nvllm.wheel import Scheme, Wheel

FORMAT = "1"
"""Version of the rules in this module, beside those of the layers in general. Part of the build hash."""

PACKAGE = "vllm/"
_NATIVE = ("csrc/", "cmake/", "CMakeLists.txt", "setup.py", "pyproject.toml", "rust/")


@dataclass(frozen=True, slots=True)
class Patched:
    """What a patch set makes of the package: path to new bytes, or None where a file goes away.

    MODES has the mode (0o644 or 0o755) of each file that does not go away.
    """

    files: Mapping[str, bytes | None]
    modes: Mapping[str, int]


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


def entries(patched: Patched, wheel: Wheel, scheme: Scheme, interpreter: Compiler) -> Iterator[Entry]:
    """Yield the patches layer's entries."""
    modules = {}
    with tempfile.TemporaryDirectory(prefix="nvllm-patch-") as scratch:
        for number, (path, data) in enumerate(sorted(patched.files.items())):
            place = f"{scheme.site}/{path}"
            if data is None:
                yield _whiteout(place)
                if path.endswith(".py"):
                    yield _whiteout(interpreter.cached(place))
                continue
            yield tarlayer.blob(place, data, executable=patched.modes[path] == 0o755)
            if path.endswith(".py"):
                copy = Path(scratch, str(number))
                copy.write_bytes(data)
                modules[place] = str(copy)
        out = Path(scratch, "bytecode.zip")
        interpreter.compile(None, modules, out)
        yield from bytecode.entries(out)
    yield tarlayer.blob(f"{scheme.site}/{wheel.dist_info}/RECORD", record(wheel.text("RECORD"), patched.files).encode())


def _whiteout(place: str) -> Entry:
    """Return the entry by which a layer takes a file of a lower layer away (OCI image specification)."""
    directory, _, name = place.rpartition("/")
    return tarlayer.blob(f"{directory}/.wh.{name}", b"")


def record(text: str, files: Mapping[str, bytes | None]) -> str:
    """Return the RECORD TEXT with the lines of FILES replaced, added or taken out; other lines keep their order."""
    rows = [row for row in csv.reader(io.StringIO(text)) if row and row[0] not in files]
    for path, data in sorted(files.items()):
        if data is not None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append([path, f"sha256={digest}", str(len(data))])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
