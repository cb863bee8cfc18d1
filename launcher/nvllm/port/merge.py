"""Each patch of a series on another source: merged three-way, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from nvllm.patches import patchcheck, patching, unified
from nvllm.patches.series import Patch, Series
from nvllm.patches.source import Overlay, SourceTree
from nvllm.patches.unified import Diff, FileDiff, Hunk

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

Resolve: TypeAlias = Callable[[str, str], bytes | None]
"""From the id of a patch and a path: the file as a person has merged it, None if nobody has."""


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
    something is UNMERGED. RENAMED are the files that the new source has under another path: old path, new path.
    SINCE is the first release that has all of it, None if that is not known, or it is not upstream.
    """

    id: str
    state: State
    detail: str
    diff: Diff | None = None
    unmerged: tuple[Unmerged, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
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
            otherwise = [name for name in patch.requires if states[name].outcome == "already-upstream"]
            ported.append(_warned(result, [name for name in otherwise if name in diffs]))
    return tuple(ported)


def _warned(result: Ported, otherwise: Sequence[str]) -> Ported:
    """Return RESULT, of a patch that requires OTHERWISE, which the new source has in another form: it lacks names that
    those patches defined, and a merge of text does not see that."""
    if not otherwise or result.state == "upstream":
        return result
    warning = f"requires {', '.join(otherwise)}, upstream in another form: read what it takes of it"
    return replace(result, detail=f"{result.detail}; {warning}")


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
        changed: dict[str, bytes | None] = {}
        files: list[FileDiff] = []
        unmerged: list[Unmerged] = []
        renamed: list[tuple[str, str]] = []
        before = patching.apply(self.old, self.diff)
        for file in self.diff.files:
            target = self._target(file)
            if target is not None and target != file.old and file.old is not None:
                renamed.append((file.old, target))
            result = self._file(file, before, target)
            if isinstance(result, Unmerged):
                unmerged.append(result)
            elif result is not None:
                files.append(result[0])
                changed |= result[1]
        if unmerged:
            places = ", ".join(one.path for one in unmerged)
            return Ported(self.patch.id, "conflict", f"in {places}", None, tuple(unmerged), tuple(renamed)), changed
        if not files:
            return Ported(self.patch.id, "upstream", f"vLLM {self.sides.version} has all of it"), {}
        diff = Diff(self.diff.name, tuple(files))
        state, detail = _compared(self._canonical(before), diff)
        if renamed:
            detail = f"{detail}; {', '.join(f'{old} is now {new}' for old, new in renamed)}"
        return Ported(self.patch.id, state, detail, diff, (), tuple(renamed)), changed

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

    def _file(
        self, file: FileDiff, before: Mapping[str, bytes | None], target: str | None
    ) -> Unmerged | tuple[FileDiff, dict[str, bytes | None]] | None:
        """Return FILE on the new source with what it changes there; None if nothing is left of it."""
        if target is None:
            if file.new is None:
                return None  # both have removed it
            return Unmerged(file.path, "the new source has no such file, and none that resembles it", None)
        new, old = self.new.read(target), self._base(file)
        patched = before[file.new] if file.new is not None else None
        if patched is None:
            if new != old:
                return Unmerged(target, "the patch removes the file, and the new source has changed it", new)
            removed = FileDiff(target, None, unified.hunks(old, b""), file.old_mode, None)
            return removed, {target: None}
        goal = target if file.old == file.new or file.old is None or file.new is None else file.new
        content = self._content(goal, new, old, patched)
        if isinstance(content, Unmerged):
            return content
        if content == new and goal == target:
            return None
        exists = new is not None
        hunks = unified.hunks(new or b"", content)
        moved = FileDiff(target if exists else None, goal, hunks, file.old_mode if exists else None, file.new_mode)
        return moved, {**({target: None} if exists and goal != target else {}), goal: content}

    def _content(self, path: str, new: bytes | None, old: bytes, patched: bytes) -> Unmerged | bytes:
        resolution = self.resolved(self.patch.id, path)
        if resolution is not None:  # also of a file that merges by its text: the text is not all that must fit
            return resolution
        if new is None:
            return patched
        result = self.merge(new, old, patched)
        if not result.conflicts:
            return result.content
        places = "1 place" if result.conflicts == 1 else f"{result.conflicts} places"
        return Unmerged(path, f"both changed the same lines, in {places}", result.content)


def _compared(old: Diff, new: Diff) -> tuple[State, str]:
    """Return the state of a patch that was OLD and is NEW, and a sentence about it."""
    hunks = [hunk for file in old.files for hunk in file.hunks], [hunk for file in new.files for hunk in file.hunks]
    before, after = (_changed(part) for part in hunks)
    left = sum(after.values())
    if after != before and not after - before:
        return "partly-upstream", f"{left} of {sum(before.values())} changed lines are left"
    if [hunk.lines for hunk in hunks[0]] != [hunk.lines for hunk in hunks[1]]:
        return "merged", "the same change among other lines" if before == after else "the change and its context"
    if hunks[0] != hunks[1] or old.paths != new.paths:
        return "moved", "the same text at other lines" if old.paths == new.paths else "the same text"
    return "unchanged", "the same text at the same lines"


def _changed(hunks: list[Hunk]) -> Counter[tuple[str, bytes]]:
    """Return how often each line is added or removed by HUNKS."""
    return Counter((tag, text.strip()) for hunk in hunks for tag, text in hunk.lines if tag != " " and text.strip())
