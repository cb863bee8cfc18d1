"""Loads ``patches/<base>/series.yaml`` and its patch files, and refuses whatever is wrong in them.

In a series that loads, every named patch file is there, has its sha256 and touches what the entry says, and the
directory has no other patch file.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import documents, reading, schemas, yamlnodes
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.patches import unified
from nvllm.patches.series import FORM, Patch, Series
from nvllm.patches.unified import Diff

NAME = "series.yaml"
_ROOTS = ("vllm/", "tests/", "csrc/", "cmake/")
BUILD_FILES = ("CMakeLists.txt", "pyproject.toml", "setup.py")
NATIVE = ("csrc/", "cmake/")
EXTENSIONS = (*NATIVE, "CMakeLists.txt")
"""The source of vLLM's extensions, which CMake compiles without the rest of vLLM's build."""


def load(directory: Path, label: str) -> Series:
    """Return the series in DIRECTORY, which messages call LABEL, such as ``patches/v0.28.0``.

    Raises Refused with every problem at once: NV107 if there is no series, NV103 for what is not YAML, NV104
    for what does not fit the schema, the files or itself, NV105 for a changed patch file.
    """
    series, document = _written(directory, label)
    refuse_any(_Checker(directory, label, document, series).refusals())
    return series


def written(directory: Path, label: str) -> Series:
    """Return the series in DIRECTORY as its file says it, whatever its patch files are.

    Raises Refused NV107, NV103 and, for what does not fit the schema, NV104.
    """
    return _written(directory, label)[0]


def _written(directory: Path, label: str) -> tuple[Series, yamlnodes.Document]:
    document = yamlnodes.parse(text(directory, label), f"{label}/{NAME}")
    refusals: list[Refusal] = []
    for problem in schemas.validate(FORM, document.value):
        where = f"{label}/{NAME}:{document.line(problem.steps)}: {problem.path}"
        refusals.append(Refusal(problem.code or "NV104", where, problem.allowed, problem.actual, problem.cure))
    refuse_any(refusals)  # only a valid document has the fields that are read from here on
    return documents.structure(FORM, document.value), document


def of(project: Project, base: str) -> Series:
    """Return the series BASE of PROJECT. Raises what `load` raises."""
    directory = project.series(base)
    return load(directory, project.show(directory))


def text(directory: Path, label: str) -> str:
    """Return the text of the series file in DIRECTORY. Raises Refused NV107, NV103 or NV109."""
    try:
        return reading.text(directory / NAME, reading.SERIES)
    except (FileNotFoundError, NotADirectoryError):
        expected = f"a series: a directory below patches/ that holds {NAME}"
        near = [path.name for path in reading.listed(directory.parent, "*") if (path / NAME).exists()]
        cure = f"name one of: {', '.join(near)}" if near else f"write {label}/{NAME}"
        raise refuse("NV107", label, expected, "none", cure) from None
    except OSError as error:
        raise reading.refused(f"{label}/{NAME}", error) from error
    except UnicodeDecodeError as error:
        where = f"{label}/{NAME}"
        raise refuse("NV103", where, "UTF-8 text", str(error), "save the file as UTF-8") from None


def diff(directory: Path, patch: Patch, label: str) -> Diff:
    """Return the diff of a carried PATCH of the series in DIRECTORY.

    The bytes that are parsed are the bytes that are hashed. Raises Refused NV104, NV105 or NV109.
    """
    where = f"{label}/{patch.file}"
    try:
        data = reading.content(directory / str(patch.file), reading.PATCH)
    except FileNotFoundError:
        cure = shlex.join(["git", "checkout", "--", where])
        raise refuse("NV104", where, "a patch file", "no such file", cure) from None
    except OSError as error:
        raise reading.refused(where, error) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != patch.sha256:
        again = shlex.join(["nvllm", "patch", "replace", patch.id, where])
        cure = f"restore it from version control; if the change is meant: {again}"
        raise refuse("NV105", where, f"sha256 {patch.sha256}", f"sha256 {digest}", cure)
    return unified.parse(data, where)


def diffs(directory: Path, patches: Collection[Patch], label: str) -> dict[str, Diff]:
    """Return the diffs of the carried ones of PATCHES by id, as `diff` does, with all refusals at once."""
    parsed: dict[str, Diff] = {}
    refusals: list[Refusal] = []
    for patch in patches:
        if patch.status == "carried":
            try:
                parsed[patch.id] = diff(directory, patch, label)
            except Refused as refused:
                refusals += refused.refusals
    refuse_any(refusals)
    return parsed


def diffs_of(project: Project, base: str, patches: Collection[Patch]) -> dict[str, Diff]:
    """Return the diffs of the carried ones of PATCHES of the series BASE of PROJECT, as `diffs` does."""
    directory = project.series(base)
    return diffs(directory, patches, project.show(directory))


def native(patch: Patch) -> bool:
    """Return whether PATCH changes code that is compiled, so that the published wheel cannot be used."""
    return any(path.startswith(NATIVE) or path in BUILD_FILES for path in patch.touches)


def extends(patch: Patch) -> bool:
    """Return whether PATCH changes the source of vLLM's extensions."""
    return any(path.startswith(EXTENSIONS) for path in patch.touches)


def touching(series: Series, paths: Collection[str], label: str) -> Iterator[Refusal]:
    """Yield NV104 for each carried patch that touches one of PATHS.

    PATHS are the files in which the wheel is known to differ from the commit: a patch of the commit's file would make
    the wrong file for the wheel.
    """
    expected = "no file in which the wheel differs from the commit (.vllm.differs)"
    for patch in series.patches:
        if patch.status == "carried":
            for path in sorted({*patch.touches} & {*paths}):
                cure = f"take {path} out of the patch, or take {patch.id} out of the patch set"
                yield Refusal("NV104", f"{label}/{patch.file}", expected, path, cure)


def other_commit(series: Series, commit: str, label: str) -> Iterator[Refusal]:
    """Yield NV104 if SERIES, in the directory LABEL, was written for another commit than COMMIT of an image spec."""
    if series.commit != commit:
        where, cure = f"{label}/{NAME}: .commit", f"name another series in the spec, or write commit: {commit}"
        yield Refusal("NV104", where, f"{commit}, the .vllm.commit of the image", series.commit, cure)


def defined(root: Path, node: str) -> bool:
    """Return whether the file of the test NODE, below ROOT, defines it, whatever its parameters."""
    file, *names = node.split("::")
    try:
        body: list[ast.stmt] = ast.parse(reading.content(root / file, reading.SOURCE)).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    for name in names:
        plain = name.partition("[")[0]
        match = next(
            (node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == plain), None
        )
        if match is None:
            return False
        body = match.body
    return bool(names)


@dataclass(frozen=True, slots=True)
class _Checker:
    """Checks what concerns more than one field, and the files."""

    directory: Path
    label: str
    document: yamlnodes.Document
    series: Series

    def refusals(self) -> list[Refusal]:
        return [
            *self._base(),
            *self._duplicates(),
            *self._references(),
            *self._evidence(),
            *self._files(),
            *self._strays(),
        ]

    def _where(self, *steps: str | int) -> str:
        return f"{self.label}/{NAME}:{self.document.line(steps)}: {yamlnodes.dotted(steps)}"

    def _base(self) -> Iterator[Refusal]:
        name = self.directory.name
        if self.series.base != name:
            cure = f"write base: {name}, or rename the directory"
            yield Refusal("NV104", self._where("base"), f"{name}, the directory's name", self.series.base, cure)

    def _duplicates(self) -> Iterator[Refusal]:
        for field in ("id", "file"):
            seen: dict[str, int] = {}
            for index, patch in enumerate(self.series.patches):
                name = patch.id if field == "id" else patch.file
                if name is None:
                    continue
                where = self._where("patches", index, field)
                if name in seen:
                    repeated = f"{name}, which patch {seen[name] + 1} of the series has too"
                    yield Refusal(
                        "NV104", where, f"one {field} for each patch", repeated, f"give one of them another {field}"
                    )
                seen.setdefault(name, index)

    def _references(self) -> Iterator[Refusal]:
        position = {patch.id: index for index, patch in enumerate(self.series.patches)}
        for index, patch in enumerate(self.series.patches):
            for at, name in enumerate(patch.requires):
                where = self._where("patches", index, "requires", at)
                if name not in position:
                    cure = f"take {name} out, or add its entry"
                    yield Refusal("NV104", where, "the id of an earlier patch", f"{name}, which is unknown", cure)
                elif position[name] >= index:
                    problem = f"{name}, which comes later" if position[name] > index else f"{name}, which is itself"
                    cure = f"move {name} before {patch.id}, or take it out"
                    yield Refusal("NV104", where, "the id of an earlier patch", problem, cure)
                elif self.series.patches[position[name]].status == "rejected":
                    cure = f"take {name} out, or carry it"
                    yield Refusal("NV104", where, "a patch that can be had", f"{name}, which is rejected", cure)
            for at, name in enumerate(patch.conflicts):
                if name not in position or name == patch.id:
                    where = self._where("patches", index, "conflicts", at)
                    problem = f"{name}, which is {'itself' if name == patch.id else 'unknown'}"
                    yield Refusal("NV104", where, "the id of another patch", problem, f"take {name} out")

    def _evidence(self) -> Iterator[Refusal]:
        for index, patch in enumerate(self.series.patches):
            for at, evidence in enumerate(patch.evidence):
                wrong = unified.checked_path(evidence.path)
                if wrong:
                    where = self._where("patches", index, "evidence", at, "path")
                    problem = f"{evidence.path!r}, which {wrong}"
                    yield Refusal("NV104", where, "a path inside the source tree", problem, "write it from the root")

    def _files(self) -> Iterator[Refusal]:
        for index, patch in enumerate(self.series.patches):
            if patch.status != "carried":
                continue
            try:
                paths = diff(self.directory, patch, self.label).paths
            except Refused as refused:
                yield from refused.refusals
                continue
            if set(paths) != set(patch.touches):
                where, names = self._where("patches", index, "touches"), ", ".join(paths)
                expected, cure = f"the files of {patch.file}: {names}", f"write touches: [{names}]"
                yield Refusal("NV104", where, expected, ", ".join(patch.touches), cure)
            yield from outside(paths, f"{self.label}/{patch.file}")

    def _strays(self) -> Iterator[Refusal]:
        named = {patch.file for patch in self.series.patches}
        expected, stray = f"only patch files that {NAME} names", "a patch file that it does not name"
        cure = f"remove it (an interrupted `nvllm patch new` leaves such a file), or add it to {NAME}"
        for name in sorted(os.listdir(self.directory)):
            if name.endswith(".patch") and name not in named:
                yield Refusal("NV104", f"{self.label}/{name}", expected, stray, cure)


def patchable(path: str) -> bool:
    """Return whether a patch may touch PATH."""
    return path.startswith(_ROOTS) or path in BUILD_FILES


def outside(paths: Collection[str], where: str) -> Iterator[Refusal]:
    """Yield NV104 for each of PATHS that no patch may touch."""
    expected = f"files below {', '.join(_ROOTS)} or one of {', '.join(BUILD_FILES)}"
    for path in paths:
        if not patchable(path):
            yield Refusal("NV104", where, expected, path, f"leave {path} out of the patch: it is in no image")
