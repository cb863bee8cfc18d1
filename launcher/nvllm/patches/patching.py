"""Applying a diff to a tree: pure, strict, the whole patch or nothing.

There is no fuzz. A hunk applies at the line in its header. If another patch has shifted that line, it applies at the
one place in the file with all its context and removed lines; with two such places it is refused. A hunk without
context before (or after) its change applies only at the start (or end) of the file, as `git diff` writes it.

No other program is used: `git apply` inside another repository does nothing and exits with 0, and busybox `patch`
ignores renames and modes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from nvllm.core.refusal import Refusal, Refused
from nvllm.patches import unified
from nvllm.patches.source import Overlay, SourceTree
from nvllm.patches.unified import Diff, FileDiff, Hunk


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why one hunk does not apply. HUNK is its header, or "" if the whole file is the reason."""

    file: str
    hunk: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of applying a diff. CHANGES is valid only if CONFLICTS is empty."""

    changes: dict[str, bytes | None]
    conflicts: tuple[Conflict, ...]


def apply(tree: SourceTree, diff: Diff) -> dict[str, bytes | None]:
    """Return the files of TREE that DIFF changes: path to new bytes, or None for a removed file.

    TREE is not changed. Raises Refused NV301 with every hunk that does not apply. `modes` returns the modes.
    """
    result = attempt(tree, diff)
    if result.conflicts:
        raise Refused(refusal(diff.name, conflict) for conflict in result.conflicts)
    return result.changes


def apply_all(tree: SourceTree, diffs: Sequence[Diff]) -> dict[str, bytes | None]:
    """Return the files of TREE that DIFFS, applied in order, change, as `apply` does.

    Raises Refused NV301 for the first diff that does not apply: the following ones may fail only because of it.
    """
    changes: dict[str, bytes | None] = {}
    for diff in diffs:
        changes |= apply(Overlay(tree, changes), diff)
    return changes


def attempt(tree: SourceTree, diff: Diff) -> Attempt:
    """Return the changes of DIFF to TREE and the conflicts; raises nothing."""
    changes: dict[str, bytes | None] = {}
    conflicts: list[Conflict] = []
    for file in diff.files:
        before = tree.read(file.old) if file.old is not None else None
        wrong = _path_conflict(tree, file, before)
        if wrong:
            conflicts.append(wrong)
            continue
        content, failed = _patched(file, before or b"")
        conflicts.extend(failed)
        if file.old is not None:
            changes[file.old] = None
        if file.new is not None:
            changes[file.new] = content
        elif content and not failed:
            conflicts.append(Conflict(file.path, "", "an empty file after all its lines are removed", "more lines"))
    return Attempt(changes, tuple(conflicts))


def tried(tree: SourceTree, diffs: Iterable[Diff]) -> SourceTree:
    """Return TREE with the changes of DIFFS, applied in order, each as far as it applies."""
    changes: dict[str, bytes | None] = {}
    for diff in diffs:
        changes |= attempt(Overlay(tree, changes), diff).changes
    return Overlay(tree, changes)


def reverses(tree: SourceTree, diff: Diff) -> bool:
    """Return whether TREE already has all changes of DIFF: whether the reverse diff applies.

    Modes are not compared, so this is False for a diff that only changes modes.
    """
    return (
        any(file.hunks or file.old != file.new for file in diff.files)
        and not attempt(tree, unified.reverse(diff)).conflicts
    )


def modes(diff: Diff) -> dict[str, int]:
    """Return the modes (0o644, 0o755) in DIFF, by path."""
    return {file.new: file.new_mode for file in diff.files if file.new is not None and file.new_mode is not None}


def refusal(name: str, conflict: Conflict) -> Refusal:
    """Return NV301 for CONFLICT of the patch that messages call NAME."""
    where = f"{name}: {conflict.file}" + (f" {conflict.hunk}" if conflict.hunk else "")
    cure = (
        "make the change again in a copy of this source, and write the patch with `nvllm patch new`; "
        "every patch that does not apply: nvllm patch check"
    )
    return Refusal("NV301", where, conflict.expected, conflict.actual, cure)


def _path_conflict(tree: SourceTree, file: FileDiff, before: bytes | None) -> Conflict | None:
    """Return the conflict if the old path of FILE does not exist, or its new path already does."""
    if file.old is not None and before is None:
        return Conflict(file.old, "", "the file", "no such file")
    if file.new is not None and file.new != file.old and tree.read(file.new) is not None:
        return Conflict(file.new, "", "no file of that name yet", "a file")
    return None


def _patched(file: FileDiff, before: bytes) -> tuple[bytes, list[Conflict]]:
    old = unified.lines(before)
    new: list[bytes] = []
    conflicts: list[Conflict] = []
    cursor = 0
    for hunk in file.hunks:
        position = _place(old, hunk, cursor)
        if isinstance(position, int):
            new += old[cursor:position]
            new += hunk.new
            cursor = position + len(hunk.old)
        else:
            conflicts.append(Conflict(file.path, hunk.header, *position))
    new += old[cursor:]
    return b"".join(new), conflicts


def _place(lines: Sequence[bytes], hunk: Hunk, cursor: int) -> int | tuple[str, str]:
    """Return the index in LINES, not before CURSOR, where HUNK applies, or (expected, found)."""
    old = hunk.old
    stated = hunk.position
    size = len(old)
    leading = sum(1 for _ in takewhile(lambda line: line[0] == " ", hunk.lines))
    trailing = sum(1 for _ in takewhile(lambda line: line[0] == " ", reversed(hunk.lines)))
    # A new line without newline can only be the last one of the file.
    at_end = trailing == 0 or not hunk.new or not hunk.new[-1].endswith(b"\n")

    def fits(start: int) -> bool:
        if (leading == 0 and start != 0) or (at_end and start + size != len(lines)):
            return False
        return tuple(lines[start : start + size]) == old

    if stated >= cursor and fits(stated):
        return stated
    places = [place for place in range(len(lines) - size + 1) if fits(place)]
    if len(places) == 1 and places[0] >= cursor:
        return places[0]
    if len(places) > 1:
        at = ", ".join(str(place + 1) for place in places[:5])
        return "the hunk's lines in one place of the file", f"{len(places)} places, beginning at lines {at}"
    if places:
        return "the hunk after the one before it", f"its lines at line {places[0] + 1}, above that"
    return _first_difference(lines, hunk, stated)


def _first_difference(lines: Sequence[bytes], hunk: Hunk, stated: int) -> tuple[str, str]:
    """Return the first line of HUNK that differs from the lines at its place, and the line there."""
    for offset, expected in enumerate(hunk.old):
        at = stated + offset
        actual = lines[at] if at < len(lines) else None
        if actual != expected:
            number = at + 1
            return f"line {number}: {_show(expected)}", "the end of the file" if actual is None else _show(actual)
    edge = "the end of the file" if stated + len(hunk.old) < len(lines) else "the start of the file"
    return f"the hunk at {edge}, since it has no context there", "other lines"


def _show(line: bytes) -> str:
    return repr(line.decode("utf-8", "backslashreplace"))
