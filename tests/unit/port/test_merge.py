"""What becomes of a patch on another source: one table, merged by git itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import patchcheck, patching
from nvllm.patches.edit import exact
from nvllm.patches.series import Patch, Series, SourceEvidence, Upstream
from nvllm.patches.source import ArchiveTree
from nvllm.patches.unified import Diff, FileDiff, hunks
from nvllm.port import gitmerge, moves
from nvllm.port.merge import Ported, Resolution, Sides, port

PATH, ELSEWHERE = "vllm/a.py", "vllm/b/a.py"
OLD = b"".join(b"line %d\n" % number for number in range(30))
EDITED = OLD.replace(b"line 15\n", b"line 15, patched\n")


def changed(text: bytes, *edits: tuple[bytes, bytes]) -> bytes:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return text


@dataclass(frozen=True)
class Row:
    """A release with the files NEW; the patch makes PATCHED of the old file, None: removes it."""

    state: str
    new: Mapping[str, bytes]
    patched: bytes | None = EDITED
    old: bytes | None = OLD
    result: bytes | None = None
    """The file after the ported patch, if it is not PATCHED."""


CALL = b"call(\n" + b"".join(b"    a%d=%d,\n" % (number, number) for number in range(30)) + b")\n"
ONE_ARGUMENT, SAME_ARGUMENT = ((b"a%d=%d,\n" % (at, at), b"a%d=%d,\n    error=1,\n" % (at, at)) for at in (5, 25))
"""Both give `call` an argument of one name, at places that a merge does not compare."""

TWO = changed(EDITED, (b"line 3\n", b"line 3, patched\n"))
ROWS: Mapping[str, Row] = {
    "the same file": Row("unchanged", {PATH: OLD}),
    "lines above": Row("moved", {PATH: b"new\n" + OLD}, result=b"new\n" + EDITED),
    "other lines within its context": Row(
        "merged", {PATH: changed(OLD, (b"line 17\n", b"17\n"))}, result=changed(EDITED, (b"line 17\n", b"17\n"))
    ),
    "all of it is there": Row("upstream", {PATH: EDITED}),
    "all of it, and more": Row("upstream", {PATH: changed(EDITED, (b"line 2\n", b"2\n"))}),
    "one of two hunks is there": Row("partly-upstream", {PATH: EDITED}, TWO, result=TWO),
    "both changed a line": Row("conflict", {PATH: changed(OLD, (b"line 15\n", b"15\n"))}),
    "the merge is no Python": Row("conflict", {PATH: changed(CALL, SAME_ARGUMENT)}, changed(CALL, ONE_ARGUMENT), CALL),
    "the file has moved": Row("moved", {ELSEWHERE: OLD}),
    "the file has moved, and changed": Row(
        "moved", {ELSEWHERE: b"new\n" + OLD, "vllm/c.py": b"x\n"}, result=b"new\n" + EDITED
    ),
    "the file is gone": Row("conflict", {"vllm/c.py": b"x\n" * 30}),
    "a new file": Row("unchanged", {}, old=None),
    "a new file that is there": Row("upstream", {PATH: EDITED}, old=None),
    "a new file that is there with other text": Row("conflict", {PATH: OLD}, old=None),
    "a file to remove": Row("unchanged", {PATH: OLD}, None),
    "a file to remove that is gone": Row("upstream", {}, None),
    "a file to remove that has changed": Row("conflict", {PATH: EDITED}, None),
}


def series(*patches: Patch) -> Series:
    return Series("nvllm.series/1", "v1", "1.0.0", 40 * "a", patches)


def carried(name: str, requires: tuple[str, ...] = (), evidence: tuple[SourceEvidence, ...] = ()) -> Patch:
    digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    return Patch(
        name, "carried", name, Upstream("none"), (PATH,), ("t",), "0001-x.patch", digest, requires, evidence=evidence
    )


def unasked(patch_id: str, path: str, merged: bytes) -> None:
    """Resolve nothing."""


def ported(row: Row) -> tuple[Ported, ArchiveTree]:
    old = {} if row.old is None else {PATH: row.old}
    names = {PATH, ELSEWHERE, *row.new}
    before, after = (ArchiveTree({name: side.get(name) for name in names}) for side in (old, row.new))
    file = FileDiff(
        PATH if row.old is not None else None,
        PATH if row.patched is not None else None,
        hunks(row.old or b"", row.patched or b""),
    )
    sides = Sides(before, after, "2.0.0", lambda path: moves.moved(path, old, row.new))
    (result,) = port(series(carried("x")), {"x": Diff("x", (file,))}, sides, gitmerge.merge, unasked)
    return result, after


def test_each_row_has_its_outcome_and_the_ported_patch_applies() -> None:
    wrong: list[str] = []
    for name, row in ROWS.items():
        result, new = ported(row)
        if result.state != row.state:
            wrong.append(f"{name}: {result.state}, {result.detail}")
        elif (result.diff is None) != (row.state in ("upstream", "conflict")):
            wrong.append(f"{name}: {result.diff}")
        elif result.diff is not None:
            changes = patching.apply(new, result.diff)
            left = [content for content in changes.values() if content is not None]
            goal = row.result or row.patched
            if left != ([] if goal is None else [goal]) or exact(new, result.diff) != result.diff:
                wrong.append(f"{name}: {changes}")
    assert wrong == []


def test_a_conflict_shows_the_lines_of_all_three() -> None:
    (file,) = ported(ROWS["both changed a line"])[0].unmerged
    assert (file.path, file.reason) == (PATH, "both changed the same lines, in 1 place")
    assert file.content is not None
    part = file.content[file.content.index(b"<<<<<<<") : file.content.index(b"line 16")]
    assert part.split(b"\n")[:-1] == [
        b"<<<<<<< the new source",
        b"15",
        b"||||||| the old source",
        b"line 15",
        b"=======",
        b"line 15, patched",
        b">>>>>>> the patch",
    ]


def test_a_person_s_merge_is_taken_and_what_requires_the_patch_builds_on_it() -> None:
    new = changed(OLD, (b"line 15\n", b"15\n"))
    by_hand = changed(new, (b"15\n", b"15, patched\n"))
    again = changed(EDITED, (b"line 15, patched\n", b"line 15, patched\nand more\n"))
    diffs = {
        "first": Diff("first", (FileDiff(PATH, PATH, hunks(OLD, EDITED)),)),
        "second": Diff("second", (FileDiff(PATH, PATH, hunks(EDITED, again)),)),
    }
    two = series(carried("first"), carried("second", ("first",)))
    sides = Sides(ArchiveTree({PATH: OLD}), ArchiveTree({PATH: new}), "2.0.0", lambda path: None)
    asked: list[str] = []

    def resolved(name: str, path: str, merged: bytes) -> Resolution | None:
        asked.append(name)
        whole = changed(by_hand, (b"15, patched\n", b"15, patched\nand more\n"))
        return Resolution({"first": by_hand, "second": whole}[name], "person")

    first, second = port(two, diffs, sides, gitmerge.merge, resolved)
    assert "first" in asked
    assert (first.state, second.state) == ("merged", "merged")
    assert first.diff is not None
    assert second.diff is not None
    changes = patching.apply_all(sides.new, [first.diff, second.diff])
    assert changes[PATH] == changed(by_hand, (b"15, patched\n", b"15, patched\nand more\n"))


def test_evidence_says_upstream_where_the_text_differs() -> None:
    there = changed(OLD, (b"line 15\n", b"done otherwise\n"))
    patch = carried("x", evidence=(SourceEvidence(PATH, ("done otherwise",)),))
    diffs = {"x": Diff("x", (FileDiff(PATH, PATH, hunks(OLD, EDITED)),))}
    sides = Sides(ArchiveTree({PATH: OLD}), ArchiveTree({PATH: there}), "2.0.0", lambda path: None)
    (result,) = port(series(patch), diffs, sides, gitmerge.merge, unasked)
    assert result.state == "upstream"
    assert patchcheck.report(series(patch), diffs, (), sides.new, "2.0.0").outcomes[0].outcome == "already-upstream"


def test_what_requires_a_patch_that_upstream_has_otherwise_is_pointed_at() -> None:
    # The new source lacks what `first` defined under its own name, and the merge of the text cannot see that.
    rows = {
        b"done otherwise\n": "the same text at the same lines; requires first, upstream in another form: read what it "
        "takes of it",
        b"line 15, patched\n": "the same text at the same lines",  # it has that name
    }
    later = changed(EDITED, (b"line 25\n", b"line 25, patched\n"))
    diffs = {
        "first": Diff("first", (FileDiff(PATH, PATH, hunks(OLD, EDITED)),)),
        "second": Diff("second", (FileDiff(PATH, PATH, hunks(EDITED, later)),)),
    }
    for there, detail in rows.items():
        evidence = (SourceEvidence(PATH, (there.decode().strip(),)),)
        two = series(carried("first", evidence=evidence), carried("second", ("first",)))
        new = ArchiveTree({PATH: changed(OLD, (b"line 15\n", there))})
        sides = Sides(ArchiveTree({PATH: OLD}), new, "2.0.0", lambda path: None)
        first, second = port(two, diffs, sides, gitmerge.merge, unasked)
        assert (first.state, second.state, second.detail) == ("upstream", "unchanged", detail)
        assert second.otherwise == (("first",) if "another form" in detail else ())


def test_a_patch_that_does_not_fit_its_own_source_is_refused() -> None:
    diffs = {"x": Diff("x", (FileDiff(PATH, PATH, hunks(OLD, EDITED)),))}
    tree = ArchiveTree({PATH: b"other\n"})
    sides = Sides(tree, tree, "2.0.0", lambda path: None)
    with pytest.raises(Refused) as refused:
        port(series(carried("x")), diffs, sides, gitmerge.merge, unasked)
    assert [refusal.code for refusal in refused.value.refusals] == ["NV301"]
