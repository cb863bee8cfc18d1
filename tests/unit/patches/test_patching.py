"""Applying diffs: to the right place or not at all, and as git does where git is right."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.core import proc
from nvllm.core.refusal import Refused
from nvllm.patches import patching, unified
from nvllm.patches.source import DirectoryTree
from nvllm.patches.unified import Diff, FileDiff
from support.series_samples import MappingTree

_TEXT = b"".join(b"line %d\n" % n for n in range(1, 21))
# Few different lines, so that repetitions and ambiguous places are common; CR and missing newlines too.
_LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n", b"-- \n", b"\\ x\n"]), max_size=25)
_CONTENTS = st.builds(lambda lines, last: b"".join(lines) + last, _LINES, st.sampled_from([b"", b"", b"end", b"\r"]))
_TREES = st.dictionaries(st.sampled_from(["vllm/a.py", "vllm/b c.py", "csrc/ä.cu"]), _CONTENTS, max_size=3)
_NO_REPOSITORY = proc.environment({"GIT_DIR": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"})


def _diff(old: bytes, new: bytes, path: str = "f") -> Diff:
    return Diff("p", (FileDiff(path, path, unified.hunks(old, new)),))


def _replaced(text: bytes, old: bytes, new: bytes) -> bytes:
    assert text.count(old) == 1
    return text.replace(old, new)


def _conflicts(tree: dict[str, bytes], diff: Diff) -> list[tuple[str, str, str]]:
    with pytest.raises(Refused) as caught:
        patching.apply(MappingTree(tree), diff)
    assert {refusal.code for refusal in caught.value.refusals} == {"NV301"}
    return [(refusal.where, refusal.expected, refusal.found) for refusal in caught.value.refusals]


def test_a_hunk_goes_where_its_header_says_even_if_its_lines_stand_elsewhere_too() -> None:
    block = b"x\nx\nx\nold\ny\ny\ny\n"
    new = block + block.replace(b"old", b"new") + block
    diff = _diff(block * 3, new)
    assert patching.apply(MappingTree({"f": block * 3}), diff) == {"f": new}


def test_shifted_lines_are_found_if_they_stand_in_one_place() -> None:
    diff = _diff(_TEXT, _replaced(_TEXT, b"line 10\n", b"ten\n"))
    shifted = b"import x\n" * 7 + _TEXT
    assert patching.apply(MappingTree({"f": shifted}), diff) == {"f": _replaced(shifted, b"line 10\n", b"ten\n")}


def test_shifted_lines_in_two_places_are_a_conflict() -> None:
    block = b"x\nx\nx\nold\ny\ny\ny\n"
    diff = _diff(block + _TEXT, block.replace(b"old", b"new") + _TEXT)
    moved = b"# one more\n" + block + block
    ((where, expected, found),) = _conflicts({"f": moved}, diff)
    assert where == "p: f @@ -1,7 +1,7 @@"
    assert expected == "the hunk's lines in one place of the file"
    assert found == "2 places, beginning at lines 2, 9"


def test_no_line_of_context_may_differ() -> None:
    diff = _diff(_TEXT, _replaced(_TEXT, b"line 10\n", b"ten\n"))
    ((where, expected, found),) = _conflicts({"f": _replaced(_TEXT, b"line 8\n", b"line eight\n")}, diff)
    assert where == "p: f @@ -7,7 +7,7 @@"
    assert expected == "line 8: 'line 8\\n'"
    assert found == "'line eight\\n'"


def test_every_failing_hunk_of_every_file_is_told() -> None:
    new = _replaced(_replaced(_TEXT, b"line 3\n", b"three\n"), b"line 18\n", b"eighteen\n")
    diff = Diff("p", tuple(FileDiff(path, path, unified.hunks(_TEXT, new)) for path in ("a", "b", "c")))
    wrong = _replaced(_replaced(_TEXT, b"line 2\n", b"2\n"), b"line 19\n", b"19\n")
    found = _conflicts({"a": wrong, "b": _TEXT}, diff)
    assert [where for where, _, _ in found] == ["p: a @@ -1,6 +1,6 @@", "p: a @@ -15,6 +15,6 @@", "p: c"]
    assert found[2][1:] == ("the file", "no such file")


def test_hunks_keep_their_order() -> None:
    early, late = (b"".join(b"%s %d\n" % (word, n) for n in range(9)) for word in (b"early", b"late"))
    new = early.replace(b"early 4", b"EARLY") + b"\n" * 9 + late.replace(b"late 4", b"LATE")
    diff = _diff(early + b"\n" * 9 + late, new)
    swapped = late + b"\n" * 9 + early
    (conflict,) = _conflicts({"f": b"#\n" + swapped}, diff)
    assert "above that" in conflict[2]


def test_a_hunk_without_context_before_it_belongs_to_the_start() -> None:
    diff = _diff(b"a\nb\nc\nd\ne\n", b"new\na\nb\nc\nd\ne\n")
    ((_, expected, found),) = _conflicts({"f": b"#\na\nb\nc\nd\ne\n"}, diff)
    assert (expected, found) == ("line 1: 'a\\n'", "'#\\n'")


def test_a_hunk_without_context_after_it_belongs_to_the_end() -> None:
    diff = _diff(b"a\nb\nc\n", b"a\nb\nc\nd\n")
    ((_, expected, _),) = _conflicts({"f": b"a\nb\nc\nmore\n"}, diff)
    assert expected == "the hunk at the end of the file, since it has no context there"


def test_a_new_last_line_without_newline_never_runs_into_the_next() -> None:
    diff = _diff(b"a\nb\nc\nlast\n", b"a\nb\nc\nlast")
    _conflicts({"f": b"a\nb\nc\nlast\nmore\n"}, diff)


def test_new_deleted_renamed_and_empty_files() -> None:
    tree = {"gone": b"x\n", "old": b"1\n2\n3\n4\n", "empty": b""}
    diff = Diff(
        "p",
        (
            FileDiff(None, "new", unified.hunks(b"", b"hello"), None, 0o755),
            FileDiff(None, "hollow"),
            FileDiff("gone", None, unified.hunks(b"x\n", b"")),
            FileDiff("old", "moved", unified.hunks(b"1\n2\n3\n4\n", b"1\n2\n3\n5\n")),
            FileDiff("empty", "empty", unified.hunks(b"", b"\r\n")),
        ),
    )
    changes = patching.apply(MappingTree(tree), diff)
    assert changes == {
        "new": b"hello",
        "hollow": b"",
        "gone": None,
        "old": None,
        "moved": b"1\n2\n3\n5\n",
        "empty": b"\r\n",
    }
    assert patching.modes(diff) == {"new": 0o755}
    back = patching.apply(MappingTree(changes), unified.reverse(diff))
    assert back == {**tree, "new": None, "hollow": None, "moved": None}


def test_a_file_in_the_way_is_a_conflict() -> None:
    new = Diff("p", (FileDiff(None, "f", unified.hunks(b"", b"x\n")),))
    assert _conflicts({"f": b"x\n"}, new) == [("p: f", "no file of that name yet", "a file")]
    assert _conflicts({"f": b"", "g": b""}, Diff("p", (FileDiff("f", "g"),)))[0][0] == "p: g"


def test_a_deleted_file_must_be_what_the_patch_deletes() -> None:
    diff = Diff("p", (FileDiff("f", None),))
    assert patching.apply(MappingTree({"f": b""}), diff) == {"f": None}
    assert _conflicts({"f": b"more\n"}, diff)[0][2] == "more lines"


def test_a_sequence_is_applied_in_order_and_stops_at_the_first_failure() -> None:
    first, second = _diff(b"a\n", b"b\n"), _diff(b"b\n", b"c\n")
    assert patching.apply_all(MappingTree({"f": b"a\n"}), [first, second]) == {"f": b"c\n"}
    with pytest.raises(Refused) as caught:
        patching.apply_all(MappingTree({"f": b"a\n"}), [second, first])
    assert len(caught.value.refusals) == 1


def test_a_change_of_mode_is_never_said_to_be_there() -> None:
    diff = Diff("p", (FileDiff("f", "f", (), 0o644, 0o755),))
    assert not patching.reverses(MappingTree({"f": b"x"}), diff)
    assert patching.apply(MappingTree({"f": b"x"}), diff) == {"f": b"x"}


@given(_CONTENTS, _CONTENTS)
def test_what_is_made_of_two_texts_makes_one_of_the_other_and_back(old: bytes, new: bytes) -> None:
    diff = _diff(old, new)
    assert patching.apply(MappingTree({"f": old}), diff) == {"f": new}
    assert patching.apply(MappingTree({"f": new}), unified.reverse(diff)) == {"f": old}
    assert patching.reverses(MappingTree({"f": new}), diff) == (old != new)


@given(_TREES, _TREES)
def test_a_rendered_diff_is_read_back_the_same(old: dict[str, bytes], new: dict[str, bytes]) -> None:
    files = [
        FileDiff(
            path if path in old else None,
            path if path in new else None,
            unified.hunks(old.get(path, b""), new.get(path, b"")),
            0o644 if path in old and path not in new else None,
            0o755 if path in new and path not in old else None,
        )
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]
    if files:
        diff = Diff("p", tuple(files))
        assert unified.parse(unified.render(diff), "p") == diff


def _git(root: Path, *arguments: str) -> proc.Completed:
    return proc.run(["git", *arguments], env=_NO_REPOSITORY, timeout=60, cwd=root)


def _write(root: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def _read(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _git_diff(repository: Path, old: dict[str, bytes], new: dict[str, bytes]) -> bytes:
    """Return what `git diff`, renames included, says of two states of a repository."""
    env = {**_NO_REPOSITORY, "GIT_DIR": str(repository / ".git"), "GIT_WORK_TREE": str(repository)}
    repository.mkdir()
    trees = []
    proc.run(["git", "init", "-q"], env=env, timeout=60, cwd=repository)
    for files in (old, new):
        for path in old:
            (repository / path).unlink(missing_ok=True)
        _write(repository, files)
        proc.run(["git", "add", "-A"], env=env, timeout=60, cwd=repository)
        trees.append(proc.run(["git", "write-tree"], env=env, timeout=60, cwd=repository).stdout.decode().strip())
    return proc.run(["git", "diff", "-M", *trees], env=env, timeout=60, cwd=repository).stdout


@settings(max_examples=12)
@given(_TREES, _TREES)
def test_gits_own_diffs_apply_as_git_applies_them(old: dict[str, bytes], new: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        text = _git_diff(root / "repository", old, new)
        if not text:
            assert old == new
            return
        (root / "p.patch").write_bytes(text)
        (root / "f").mkdir()
        _write(root / "f", old)
        changes = patching.apply(DirectoryTree(root / "f"), unified.parse(text, "p"))
        applied = _git(root / "f", "apply", "-p1", "../p.patch")
        assert applied.returncode == 0, applied.stderr
        ours = {path: content for path, content in {**old, **changes}.items() if content is not None}
        assert ours == _read(root / "f") == new


@settings(max_examples=12)
@given(_CONTENTS, _CONTENTS, _LINES)
def test_our_diffs_apply_with_git_and_where_both_shift_a_hunk_they_agree(
    old: bytes, new: bytes, before: list[bytes]
) -> None:
    diff = _diff(old, new)
    if old == new:
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "p.patch").write_bytes(unified.render(diff))
        for present in (old, b"".join(before) + old):
            (root / "f").write_bytes(present)
            ours = patching.attempt(MappingTree({"f": present}), diff)
            git = _git(root, "apply", "-p1", "p.patch")
            if present == old:
                assert git.returncode == 0, git.stderr
                assert not ours.conflicts
            if git.returncode == 0 and not ours.conflicts:
                assert ours.changes == {"f": (root / "f").read_bytes()}


def test_git_apply_does_nothing_below_another_repository_and_we_do_not_care(tmp_path: Path) -> None:
    plain = proc.environment({"GIT_CONFIG_NOSYSTEM": "1", "HOME": str(tmp_path)})
    assert proc.run(["git", "init", "-q", "."], env=plain, timeout=60, cwd=tmp_path).returncode == 0
    build = tmp_path / "build"
    build.mkdir()
    (build / "f").write_bytes(_TEXT)
    new = _replaced(_TEXT, b"line 10\n", b"ten\n")
    diff = _diff(_TEXT, new)
    (tmp_path / "p.patch").write_bytes(unified.render(diff))

    silent = proc.run(["git", "apply", "-p1", "../p.patch"], env=plain, timeout=60, cwd=build)
    assert silent.returncode == 0
    assert (build / "f").read_bytes() == _TEXT  # it said yes, and did nothing
    assert patching.apply(DirectoryTree(build), diff) == {"f": new}
    assert _git(build, "apply", "-p1", "../p.patch").returncode == 0
    assert (build / "f").read_bytes() == new
