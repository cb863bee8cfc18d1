"""Each patch of a series on another source: merged three-way, and what became of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from nvllm.patches import patchcheck, patching, rangediff, unified
from nvllm.patches.series import Patch, Series
from nvllm.patches.source import Overlay, SourceTree
from nvllm.patches.unified import Diff, FileDiff

State = Literal["unchanged", "moved", "merged", "partly-upstream", "upstream", "conflict", "rejected", "missing"]
"""What became of a patch: the same text at the same lines; the same text elsewhere; the same change among other lines;
what is left of a change of which the new source has a part; nothing, for the new source has it; a change that a person
must make; not to be applied, as its series says; upstream by its series, and not in this source."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of one three-way merge. CONTENT has markers where CONFLICTS, a number, is not 0."""

    content: bytes
    conflicts: int


Merge: TypeAlias = Callable[[bytes, bytes, bytes], Merged]
"""From the new file, the old file and the old file with the patch."""

Origin: TypeAlias = Literal["person", "memory"]
"""Who resolved a file: a person for this port, or a person before, for another port or another series."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The CONTENT of a file as a person has merged it, and its ORIGIN."""

    content: bytes
    origin: Origin


Resolve: TypeAlias = Callable[[str, str, bytes], Resolution | None]
"""From the id of a patch, a path and what git merged there, which may have markers. None if no person has merged it."""


@dataclass(frozen=True, slots=True)
class ResolvedFile:
    """A file of the new source that a person has merged: git made MERGED of it, and the person RESOLUTION."""

    path: str
    merged: bytes
    resolution: Resolution


@dataclass(frozen=True, slots=True)
class Unmerged:
    """A file of the new source that a person must merge. CONTENT has markers; None if there is no such file."""

    path: str
    reason: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Ported:
    """What became of one patch.

    DIFF is the change on the new source, on top of the patches that it requires; None if nothing is left of it, or
    something is UNMERGED. BEFORE is the change on the old source, written as DIFF is. RENAMED are the files that the
    new source has under another path: old path, new path. RESOLVED are the files that a person has merged. OTHERWISE
    are patches that it requires and that the new source has in another form. SINCE is the first release that has all
    of it, None if that is not known, or it is not upstream.
    """

    id: str
    state: State
    detail: str
    diff: Diff | None = None
    before: Diff | None = None
    unmerged: tuple[Unmerged, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    resolved: tuple[ResolvedFile, ...] = ()
    otherwise: tuple[str, ...] = ()
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Sides:
    """What a series is moved between: OLD, its own source; NEW, that of VERSION; MOVED finds a file of OLD in NEW."""

    old: SourceTree
    new: SourceTree
    version: str
    moved: Callable[[str], str | None]


def port(
    series: Series, diffs: Mapping[str, Diff], sides: Sides, merge: Merge, resolved: Resolve
) -> tuple[Ported, ...]:
    """Return what becomes of each patch of SERIES on the new source, in the series' order.

    DIFFS are those of its carried patches. A patch is merged on top of those that it requires, as these were merged.
    """
    known = patchcheck.report(series, diffs, (), sides.new, sides.version)
    states = {outcome.id: outcome for outcome in known.outcomes}
    changes: dict[str, dict[str, bytes | None]] = {}
    ported: list[Ported] = []
    for patch in series.patches:
        outcome = states[patch.id]
        if patch.status == "rejected":
            ported.append(Ported(patch.id, "rejected", outcome.detail))
        elif outcome.outcome == "already-upstream":
            ported.append(Ported(patch.id, "upstream", outcome.detail))
        elif patch.status == "upstream":
            ported.append(Ported(patch.id, "missing", outcome.detail))
        else:
            below = patchcheck.requirements(series, patch)
            old = Overlay(sides.old, patching.apply_all(sides.old, [diffs[other.id] for other in below]))
            under: dict[str, bytes | None] = {}
            for other in below:
                under |= changes.get(other.id, {})
            job = _Job(patch, diffs[patch.id], old, Overlay(sides.new, under), sides, merge, resolved)
            result, changes[patch.id] = job.merged()
            ported.append(_warned(result, [name for name in patch.requires if states[name].otherwise]))
    return tuple(ported)


def _warned(result: Ported, otherwise: Sequence[str]) -> Ported:
    """Return RESULT, of a patch that requires OTHERWISE, which the new source has in another form: it lacks names that
    those patches defined, and a merge of text does not see that."""
    if not otherwise or result.state == "upstream":
        return result
    warning = f"requires {', '.join(otherwise)}, upstream in another form: read what it takes of it"
    return replace(result, detail=f"{result.detail}; {warning}", otherwise=tuple(otherwise))


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a patch on the new source: its DIFF, None if nothing is left of it, and the files that it CHANGED."""

    diff: FileDiff | None = None
    changed: Mapping[str, bytes | None] = field(default_factory=dict)
    resolved: tuple[ResolvedFile, ...] = ()
    unmerged: tuple[Unmerged, ...] = ()


@dataclass(frozen=True, slots=True)
class _Job:
    """One PATCH with its DIFF, between OLD and NEW, which have the patches that it requires."""

    patch: Patch
    diff: Diff
    old: SourceTree
    new: SourceTree
    sides: Sides
    merge: Merge
    resolved: Resolve

    def merged(self) -> tuple[Ported, dict[str, bytes | None]]:
        """Return what became of the patch, and the files of the new source that it changes."""
        parts: list[_File] = []
        renamed: list[tuple[str, str]] = []
        before = patching.apply(self.old, self.diff)
        canonical = self._canonical(before)
        for file in self.diff.files:
            target = self._target(file)
            if target is not None and target != file.old and file.old is not None:
                renamed.append((file.old, target))
            parts.append(self._file(file, before, target))
        changed = {path: content for part in parts for path, content in part.changed.items()}
        unmerged = tuple(file for part in parts for file in part.unmerged)
        resolved = tuple(file for part in parts for file in part.resolved)
        files = tuple(part.diff for part in parts if part.diff is not None)
        diff = Diff(self.diff.name, files) if files and not unmerged else None
        state: State
        if unmerged:
            state, detail = "conflict", f"in {', '.join(file.path for file in unmerged)}"
        elif diff is None:
            state, detail, changed = "upstream", f"vLLM {self.sides.version} has all of it", {}
        else:
            state, detail = _compared(canonical, diff)
            detail = "; ".join([detail, *(f"{old} is now {new}" for old, new in renamed), *map(_origin, resolved)])
        return Ported(self.patch.id, state, detail, diff, canonical, unmerged, tuple(renamed), resolved), changed

    def _canonical(self, before: Mapping[str, bytes | None]) -> Diff:
        """Return the diff as it would be written today for the old source, to be compared with the new one."""
        return Diff(
            self.diff.name,
            tuple(
                FileDiff(
                    file.old, file.new, unified.hunks(self._base(file), before[file.new] or b"" if file.new else b"")
                )
                for file in self.diff.files
            ),
        )

    def _base(self, file: FileDiff) -> bytes:
        return (self.old.read(file.old) or b"") if file.old is not None else b""

    def _target(self, file: FileDiff) -> str | None:
        """Return the path in the new source of what FILE changes, None if the new source has no such file."""
        path = file.old if file.old is not None else file.new
        if path is None or self.new.read(path) is not None:
            return path
        return self.sides.moved(path) if file.old is not None else path

    def _file(self, file: FileDiff, before: Mapping[str, bytes | None], target: str | None) -> _File:
        """Return FILE on the new source, where it is at TARGET; BEFORE is what the patch makes of the old source."""
        if target is None:
            if file.new is None:
                return _File()  # both have removed it
            gone = Unmerged(file.path, "the new source has no such file, and none that resembles it", None)
            return _File(unmerged=(gone,))
        new, old = self.new.read(target), self._base(file)
        patched = before[file.new] if file.new is not None else None
        if patched is None:
            if new != old:
                reason = "the patch removes the file, and the new source has changed it"
                return _File(unmerged=(Unmerged(target, reason, new),))
            removed = FileDiff(target, None, unified.hunks(old, b""), file.old_mode, None)
            return _File(removed, {target: None})
        goal = target if file.old == file.new or file.old is None or file.new is None else file.new
        merged = self.merge(new, old, patched) if new is not None else Merged(patched, 0)
        # Also where the text merges: the text is not all that must fit.
        resolution = self.resolved(self.patch.id, goal, merged.content)
        if resolution is None and merged.conflicts:
            places = "1 place" if merged.conflicts == 1 else f"{merged.conflicts} places"
            reason = f"both changed the same lines, in {places}"
            return _File(unmerged=(Unmerged(goal, reason, merged.content),))
        resolved = (ResolvedFile(goal, merged.content, resolution),) if resolution is not None else ()
        content = resolution.content if resolution is not None else merged.content
        error = _error(goal, content) if new is not None else None
        if error is not None and _error(goal, new or b"") is None:
            return _File(unmerged=(Unmerged(goal, f"what was merged is no Python: {error}", content),))
        if content == new and goal == target:
            return _File(resolved=resolved)
        exists = new is not None
        hunks = unified.hunks(new or b"", content)
        moved = FileDiff(target if exists else None, goal, hunks, file.old_mode if exists else None, file.new_mode)
        return _File(moved, {**({target: None} if exists and goal != target else {}), goal: content}, resolved)


def _error(path: str, content: bytes) -> str | None:
    """Return why CONTENT of the file PATH is no Python; None if it is, or PATH is no Python file.

    It is compiled and never run: only the compiler sees that a call has an argument twice, which a parser takes.
    """
    if not path.endswith(".py"):
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # of vLLM's own lines
            compile(content, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{error.msg}, line {error.lineno}"
    except ValueError as error:  # a NUL
        return str(error)
    return None


def _origin(resolved: ResolvedFile) -> str:
    words = {"person": "as a person merged it", "memory": "as it was resolved before"}
    return f"{resolved.path} {words[resolved.resolution.origin]}"


def _compared(old: Diff, new: Diff) -> tuple[State, str]:
    """Return the state of a patch that was OLD and is NEW, and a sentence about it."""
    hunks = [hunk for file in old.files for hunk in file.hunks], [hunk for file in new.files for hunk in file.hunks]
    before, after = rangediff.changed(old), rangediff.changed(new)
    left = sum(after.values())
    if after != before and not after - before:
        return "partly-upstream", f"{left} of {sum(before.values())} changed lines are left"
    if [hunk.lines for hunk in hunks[0]] != [hunk.lines for hunk in hunks[1]]:
        return "merged", "the same change among other lines" if before == after else "the change and its context"
    if hunks[0] != hunks[1] or old.paths != new.paths:
        return "moved", "the same text at other lines" if old.paths == new.paths else "the same text"
    return "unchanged", "the same text at the same lines"
