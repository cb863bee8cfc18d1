"""What differs between two texts of one patch: by a table, and beside what `git range-diff` says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nvllm.patches import rangediff
from nvllm.patches.unified import Diff, FileDiff, hunks
from support.gitrepo import git

PATH, ELSEWHERE = "vllm/a.py", "vllm/b.py"
OLD = b"".join(b"line %d\n" % number for number in range(30))
EDIT = (b"line 15\n", b"line 15, patched\n")


def patch(before: bytes, *edits: tuple[bytes, bytes], path: str = PATH) -> Diff:
    after = before
    for edit in edits:
        after = after.replace(*edit)
    return Diff("x", (FileDiff(path, path, hunks(before, after)),))


MINE = patch(OLD, EDIT)
NEAR = OLD.replace(b"line 17\n", b"17\n")
CASES: Mapping[str, tuple[Diff, Mapping[str, str], tuple[str, ...]]] = {
    "the same": (MINE, {}, ()),
    "the same at other lines": (patch(b"new\n" + OLD, EDIT), {}, ()),
    "other lines around it": (
        patch(NEAR, EDIT),
        {},
        (f"@@ {PATH}", " -line 15", " +line 15, patched", "  line 16", "- line 17", "+ 17", "  line 18"),
    ),
    "another change": (
        patch(OLD, (b"line 15\n", b"line 15, ported\n")),
        {},
        (
            f"@@ {PATH}",
            "  line 13",
            "  line 14",
            " -line 15",
            "-+line 15, patched",
            "++line 15, ported",
            "  line 16",
            "  line 17",
            "  line 18",
        ),
    ),
    "a file under another path": (
        patch(OLD, EDIT, path=ELSEWHERE),
        {PATH: ELSEWHERE},
        (
            f"@@ {ELSEWHERE}",
            f"-diff --git a/{PATH} b/{PATH}",
            f"---- a/{PATH}",
            f"-+++ b/{PATH}",
            f"+diff --git a/{ELSEWHERE} b/{ELSEWHERE}",
            f"+--- a/{ELSEWHERE}",
            f"++++ b/{ELSEWHERE}",
            " @@",
            "  line 12",
            "  line 13",
        ),
    ),
}


def test_each_case_has_its_lines() -> None:
    for name, (new, renamed, expected) in CASES.items():
        assert rangediff.lines(MINE, new, renamed) == expected, name


@pytest.mark.parametrize(
    ("source", "after"), [(NEAR, b"line 15, patched\n"), (OLD, b"line 15, ported\n"), (NEAR, b"15\nand more\n")]
)
def test_git_shows_the_same_lines(source: bytes, after: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    git(tmp_path, "init", "--quiet", "--initial-branch=old")
    tips: list[str] = []
    for name, before, edit in (("old", OLD, EDIT[1]), ("new", source, after)):
        git(tmp_path, "checkout", "--quiet", "--orphan", f"{name}-patched")
        for number, text in enumerate((before, before.replace(EDIT[0], edit))):
            file.write_bytes(text)
            git(tmp_path, "add", "a.py")
            git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", f"commit {number}")
        tips.append(f"{name}-patched~1..{name}-patched")
    answer = git(tmp_path, "range-diff", "--no-color", "--creation-factor=999", *tips).decode()
    by_git = [line[4:] for line in answer.splitlines() if line.startswith(("    +", "    -"))]
    new = patch(source, (EDIT[0], after), path="a.py")
    own = [line for line in rangediff.lines(patch(OLD, EDIT, path="a.py"), new, {}) if line[0] in "+-"]
    assert own == by_git
    assert own
