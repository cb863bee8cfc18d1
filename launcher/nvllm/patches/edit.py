"""Writing patches: `nvllm patch new`, `replace` and `refresh`.

People edit the series file: entries are inserted into its text, and its order, comments and spacing stay. The patch
file is written first and the series second, each by one rename. If nvllm is killed in between, there is a file without
an entry, or one with another sha256 than its entry; `seriesfile.load` refuses both.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nvllm.core import canonical, documents, durable, reading, schemas, yamledit, yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.patches import patchcheck, patching, seriesfile, unified
from nvllm.patches.series import FORM, Patch, Series, Upstream
from nvllm.patches.source import Overlay, SourceTree
from nvllm.patches.unified import Diff, FileDiff

NOT_UPSTREAM = Upstream("none")
MOST_FILES = 50_000
MOST_BYTES = 2 * 2**30
"""Most of a copy of the source; vLLM has 5,000 files and 60 MB."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a tree. UNFIT tells why a patch cannot contain it, None if it can."""

    content: bytes
    mode: int
    unfit: str | None = None


def add(
    directory: Path,
    label: str,
    patch_id: str,
    summary: str,
    proved_by: Sequence[str],
    diff: Diff,
    upstream: Upstream = NOT_UPSTREAM,
) -> Patch:
    """Write DIFF as the last patch of the series in DIRECTORY, and add its entry, which is returned.

    Messages call the directory LABEL. PROVED_BY are pytest node ids, UPSTREAM is where the change comes from. Raises
    Refused before anything is written: NV104 for an id that is taken, and for paths that a patch cannot contain; NV108
    for an id, a summary or tests that the schema forbids. NV920 if it cannot be written.
    """
    series = seriesfile.load(directory, label)
    if series.patch(patch_id) is not None:
        cure = f"choose another id, or put another change in its place: nvllm patch replace {patch_id} FILE"
        raise refuse("NV104", f"{label}/{seriesfile.NAME}", "a new id", patch_id, cure)
    new = entry(series, patch_id, summary, proved_by, diff, upstream)
    check_entry(series, new)
    text = extended(seriesfile.text(directory, label), new, f"{label}/{seriesfile.NAME}")
    return _written(directory, label, patch_id, str(new["file"]), unified.render(diff), text)


def entry(
    series: Series, patch_id: str, summary: str, proved_by: Sequence[str], diff: Diff, upstream: Upstream
) -> dict[str, Json]:
    """Return the entry of the new patch PATCH_ID, whose content is DIFF, as the last one of SERIES.

    Raises Refused NV104 for paths that a patch cannot contain.
    """
    refuse_any(seriesfile.outside(diff.paths, diff.name))
    data = unified.render(diff)
    unified.parse(data, diff.name)  # refuses a path that no patch can hold
    number = 1 + max((int((patch.file or "0000")[:4]) for patch in series.patches), default=0)
    return {
        "id": patch_id,
        "status": "carried",
        "file": f"{number:04}-{patch_id}.patch",
        "sha256": hashlib.sha256(data).hexdigest(),
        "summary": summary,
        "upstream": {key: value for key, value in asdict(upstream).items() if value is not None},
        "touches": list(diff.paths),
        "proved-by": list(proved_by),
    }


def refresh(directory: Path, label: str, patch_id: str, tree: SourceTree) -> Patch:
    """Write patch PATCH_ID again with the line numbers of TREE, and its new sha256 into the series.

    It is applied on top of the patches that it requires. Returns the entry; an exact patch is left as it is. Raises
    Refused before anything is changed: NV107 for an unknown id, NV106 for a patch that is not carried or that TREE
    already has, NV301 with every hunk that does not apply. NV920 if it cannot be written.
    """
    series = seriesfile.load(directory, label)
    patch = carried(series, patch_id, label)
    needed = (*patchcheck.requirements(series, patch), patch)
    diffs = seriesfile.diffs(directory, needed, label)
    below = Overlay(tree, patching.apply_all(tree, [diffs[other.id] for other in needed[:-1]]))
    diff = diffs[patch_id]
    reverses = patching.reverses(below, diff)
    if reverses or (patch.evidence and not patchcheck.lacking(patch.evidence, tree)):
        cure = f"give {patch_id} `status: upstream`, with evidence, and remove its file"
        state = "a source that holds all of it" if reverses else "a source that has it in another form: its evidence"
        raise refuse("NV106", f"{label}/{patch.file}", "a change that the source lacks", state, cure)
    data = unified.render(exact(below, diff))
    digest = hashlib.sha256(data).hexdigest()
    if digest == patch.sha256:
        return patch
    text = _rehashed(seriesfile.text(directory, label), series, patch, digest, f"{label}/{seriesfile.NAME}")
    return _written(directory, label, patch_id, str(patch.file), data, text)


def replacement(
    series: Series, label: str, patch_id: str, others: Mapping[str, Diff], diff: Diff, tree: SourceTree
) -> Diff:
    """Return DIFF, which is to take the place of patch PATCH_ID, with the line numbers that it has on TREE.

    It is applied on top of the patches that the old one requires, of which OTHERS are the diffs. Raises Refused: NV107
    or NV106 as `carried` does, NV106 for a change that TREE has already, NV301 with each hunk that does not apply.
    """
    patch = carried(series, patch_id, label)
    refuse_any(seriesfile.outside(diff.paths, diff.name))
    needed = patchcheck.requirements(series, patch)
    below = Overlay(tree, patching.apply_all(tree, [others[other.id] for other in needed]))
    if patching.reverses(below, diff):
        raise refuse("NV106", diff.name, "a change that the source lacks", "all of it is in it", "name another diff")
    return exact(below, diff)


def replace_patch(directory: Path, label: str, patch_id: str, diff: Diff, upstream: Upstream = NOT_UPSTREAM) -> Patch:
    """Make DIFF the content of patch PATCH_ID, and write its hash and paths into the series. Returns the entry.

    Where the entry has head or base of a pull request, that of UPSTREAM takes its place. Raises Refused NV104 before
    anything is written if the entry's hash or paths stand in a form that cannot be edited, NV920 if it cannot be
    written, and as `seriesfile.load` does for what else is wrong in the series.
    """
    series = seriesfile.written(directory, label)
    patch = carried(series, patch_id, label)
    data = unified.render(diff)
    unified.parse(data, diff.name)  # refuses a path that no patch can hold
    file, index = f"{label}/{seriesfile.NAME}", series.patches.index(patch)
    text = _rehashed(seriesfile.text(directory, label), series, patch, hashlib.sha256(data).hexdigest(), file)
    if {*diff.paths} != {*patch.touches}:
        text = _touching(text, series, patch, diff.paths, file)
    before = patch.upstream
    for key, old, new in (("head", before.head, upstream.head), ("base", before.base, upstream.base)):
        if old is not None and new is not None:
            text = yamledit.replaced(text, ("patches", index, "upstream", key), old, new)
    return _written(directory, label, patch_id, str(patch.file), data, text)


def _written(directory: Path, label: str, patch_id: str, file: str, data: bytes, text: str) -> Patch:
    """Write DATA as the patch FILE, then TEXT as the series; return the entry PATCH_ID, as it is read again."""
    durable.replace(directory / file, data, 0o644, code="NV920")
    durable.replace(directory / seriesfile.NAME, text.encode(), 0o644, code="NV920")
    return carried(seriesfile.load(directory, label), patch_id, label)


def exact(tree: SourceTree, diff: Diff) -> Diff:
    """Return DIFF with the line numbers it has on TREE. Raises Refused NV301 with each hunk that does not apply."""
    after = patching.apply(tree, diff)
    files = tuple(
        replace(file, hunks=unified.hunks(_read(tree, file.old), (after[file.new] if file.new else None) or b""))
        for file in diff.files
    )
    return replace(diff, files=files)


def compare(before: Path, after: Path, name: str) -> Diff:
    """Return the diff from the tree BEFORE to the tree AFTER; messages call it NAME.

    ``.git`` and ``__pycache__`` are left out. Raises Refused NV104 for files that a patch cannot contain (links,
    binary files), for a directory that is missing, and if nothing differs.
    """
    refuse_any(
        Refusal("NV104", str(root), "a directory with a copy of the source", "no directory", "unpack the source there")
        for root in (before, after)
        if not root.is_dir()
    )
    old, new_ = _tree(before), _tree(after)
    refusals: list[Refusal] = []
    files: list[FileDiff] = []
    for path in sorted(old | new_):
        first = _file(before / path) if path in old else None
        second = _file(after / path) if path in new_ else None
        if first == second:
            continue
        wrong = next((side.unfit for side in (first, second) if side is not None and side.unfit), None)
        if wrong is not None:
            cure = "take the file out of the change; a patch holds regular text files only"
            where = str(after / path).encode(errors="backslashreplace").decode()
            refusals.append(Refusal("NV104", where, "a regular text file", wrong, cure))
        else:
            files.append(_file_diff(path, first, second))
    refuse_any(refusals)
    if not files:
        cure = "edit files in the second copy, then run it again"
        raise refuse("NV104", str(after), f"a difference from {before}", "none", cure)
    return Diff(name, tuple(files))


def _tree(root: Path) -> set[str]:
    """Return the path of everything below ROOT except directories.

    Raises Refused NV104 if that is more than a copy of the source can be, such as a whole disk.
    """
    paths: set[str] = set()
    size = 0
    for folder, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name not in (".git", "__pycache__")]
        links = [name for name in directories if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            full = os.path.join(folder, name)
            paths.add(os.path.relpath(full, root))
            with contextlib.suppress(OSError):  # a file that has just gone, as in /proc
                size += os.lstat(full).st_size
            if len(paths) > MOST_FILES or size > MOST_BYTES:
                expected = f"a copy of the source, of at most {MOST_FILES} files and {MOST_BYTES} bytes"
                raise refuse("NV104", str(root), expected, "more", "name the two directories with copies of the source")
    return paths


def _file(path: Path) -> _File:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return _File(os.fsencode(os.readlink(path)), 0, "a link")
    if not stat.S_ISREG(status.st_mode):
        return _File(b"", status.st_mode, "a special file")
    if status.st_size > reading.PAGE:
        return _File(canonical.sha256_file(path).encode(), status.st_mode, f"a file of {status.st_size} bytes")
    content = reading.unlinked(path, reading.PAGE)
    unfit = "a binary file" if b"\0" in content else None  # as git tells one
    if not str(path).isprintable():  # in a name that is not UTF-8 the system puts lone surrogates
        unfit = "a name that is not printable UTF-8"
    return _File(content, 0o755 if status.st_mode & 0o100 else 0o644, unfit)


def _file_diff(path: str, first: _File | None, second: _File | None) -> FileDiff:
    changed = unified.hunks(first.content if first else b"", second.content if second else b"")
    same = first is not None and second is not None and first.mode == second.mode
    return FileDiff(
        path if first else None,
        path if second else None,
        changed,
        None if same or first is None else first.mode,
        None if same or second is None else second.mode,
    )


def _read(tree: SourceTree, path: str | None) -> bytes:
    return (tree.read(path) if path is not None else None) or b""


def carried(series: Series, patch_id: str, label: str) -> Patch:
    """Return the carried patch PATCH_ID of SERIES, which messages call LABEL. Raises Refused NV107 or NV106."""
    patch = series.patch(patch_id)
    if patch is None:
        ids = ", ".join(other.id for other in series.patches) or "no patch"
        cure = f"nvllm patch list --series {series.base}"
        raise refuse("NV107", f"{label}/{seriesfile.NAME}", f"one of {ids}", patch_id, cure)
    if patch.status != "carried":
        cure = "only a carried patch has a file"
        state = f"{patch_id}, which is {patch.status}"
        raise refuse("NV106", f"{label}/{seriesfile.NAME}", "a carried patch", state, cure)
    return patch


def check_entry(series: Series, entry: dict[str, Json]) -> None:
    """Raise Refused NV108 for what the schema of a series forbids in ENTRY."""
    head = {"schema": series.schema, "base": series.base, "version": series.version, "commit": series.commit}
    refusals: list[Refusal] = []
    for problem in schemas.validate(FORM, {**head, "patches": [entry]}):
        where = f"the new patch: {problem.path.removeprefix('.patches[0]')}"
        refusals.append(Refusal("NV108", where, problem.allowed, problem.actual, problem.cure))
    refuse_any(refusals)


def extended(text: str, entry: dict[str, Json], label: str) -> str:
    """Return TEXT, a series file, with ENTRY after its last patch.

    Raises Refused NV104 if the result would not parse as the old document plus ENTRY, for example because the list of
    patches is not in block form.
    """
    before = yamlnodes.parse(text, label)
    assert isinstance(before.value, dict)
    patches = before.value["patches"]
    assert isinstance(patches, list)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    head = before.lines[".patches"]
    later = [before.lines[yamlnodes.join(".", key)] for key in before.value]
    end = min([line - 1 for line in later if line > head], default=len(lines))
    if patches:
        first = lines[before.lines[".patches[0]"] - 1]
        indent = first[: len(first) - len(first.lstrip())]
    else:
        lines[head - 1 : end] = ["patches:\n"]
        end, indent = head, "  "
    blank = [] if not lines[end - 1].strip() or not patches else ["\n"]
    lines[end:end] = [*blank, *_entry_lines(entry, indent)]
    result = "".join(lines)
    if _value(result, label) != {**before.value, "patches": [*patches, entry]}:
        where = f"{label}:{head}"
        cure = "write the list as one `- id: ...` entry below the other, then run it again"
        raise refuse("NV104", where, "a list of patches in block form", "another form", cure)
    return result


def _value(text: str, label: str) -> Json:
    """Return the document in TEXT, or None if it cannot be parsed."""
    try:
        return yamlnodes.parse(text, label).value
    except Refused:
        return None


def _entry_lines(entry: dict[str, Json], indent: str) -> Iterator[str]:
    for index, (key, value) in enumerate(entry.items()):
        lead = f"{indent}- " if index == 0 else f"{indent}  "
        if isinstance(value, list):
            yield f"{lead}{key}:\n"
            for item in value:
                yield f"{indent}    - {yamledit.scalar(item)}\n"
        elif isinstance(value, dict):
            yield f"{lead}{key}: {{{', '.join(f'{name}: {yamledit.scalar(item)}' for name, item in value.items())}}}\n"
        else:
            yield f"{lead}{key}: {yamledit.scalar(value)}\n"


def _touching(text: str, series: Series, patch: Patch, paths: Sequence[str], label: str) -> str:
    """Return TEXT with PATHS as what PATCH touches. Raises Refused NV104 for a list in a form that is not edited."""
    index = series.patches.index(patch)
    result = yamledit.set_list(text, ("patches", index, "touches"), paths)
    document = _value(result, label)
    if document is None or documents.structure(FORM, document).patches[index].touches != tuple(paths):
        number = yamlnodes.parse(text, label).lines[yamlnodes.dotted(["patches", index, "touches"])]
        cure = "write `touches:` and its list on one line, or one path on each line"
        raise refuse("NV104", f"{label}:{number}", "a list of paths that can be edited", "another form", cure)
    return result


def _rehashed(text: str, series: Series, patch: Patch, digest: str, label: str) -> str:
    """Return TEXT with only the sha256 of PATCH replaced by DIGEST."""
    at = yamlnodes.dotted(["patches", series.patches.index(patch), "sha256"])
    lines = text.splitlines(keepends=True)
    number = yamlnodes.parse(text, label).lines[at] - 1
    old = str(patch.sha256)
    if old not in lines[number]:
        cure = "write `sha256:` and its value on one line"
        raise refuse("NV104", f"{label}:{number + 1}", "the sha256 on this line", "another form", cure)
    lines[number] = lines[number].replace(old, digest)
    return "".join(lines)
