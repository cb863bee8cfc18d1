"""Parsing diffs: what they mean, and what is refused because it could mean two things."""

from __future__ import annotations

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import unified
from nvllm.patches.unified import Diff, FileDiff, Hunk

_HEAD = b"diff --git a/vllm/a.py b/vllm/a.py\n--- a/vllm/a.py\n+++ b/vllm/a.py\n"
_HUNK = b"@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"


def _refused(data: bytes) -> str:
    with pytest.raises(Refused) as caught:
        unified.parse(data, "p.patch")
    (refusal,) = caught.value.refusals
    assert refusal.code == "NV104"
    return f"{refusal.where} | {refusal.expected} | {refusal.found}"


def test_a_hunk_holds_both_sides() -> None:
    (file,) = unified.parse(_HEAD + _HUNK, "p").files
    assert (file.old, file.new, file.path, file.paths) == ("vllm/a.py", "vllm/a.py", "vllm/a.py", ("vllm/a.py",))
    (hunk,) = file.hunks
    assert hunk.old == (b"one\n", b"two\n")
    assert hunk.new == (b"one\n", b"zwei\n")
    assert hunk.header == "@@ -1,2 +1,2 @@"


def test_a_plain_diff_with_dates_is_read() -> None:
    data = b"--- a/x.py\t2026-01-01 00:00:00\n+++ b/x.py\t2026-01-02 00:00:00\n" + _HUNK
    assert unified.parse(data, "p").paths == ("x.py",)


def test_the_text_of_a_mail_is_skipped() -> None:
    mail = b"From 0123 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] zwei\n\nWhy.\n---\n vllm/a.py | 2 +-\n\n"
    assert unified.parse(mail + _HEAD + _HUNK + b"-- \n2.39.5\n\n", "p") == unified.parse(_HEAD + _HUNK, "p")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"new file mode 100755\nindex 0000000..1\n", FileDiff(None, "vllm/a.py", (), None, 0o755)),
        (b"deleted file mode 100644\n", FileDiff("vllm/a.py", None, (), 0o644, None)),
        (b"old mode 100644\nnew mode 100755\n", FileDiff("vllm/a.py", "vllm/a.py", (), 0o644, 0o755)),
    ],
)
def test_a_file_without_hunks_is_named_by_its_git_line(header: bytes, expected: FileDiff) -> None:
    assert unified.parse(b"diff --git a/vllm/a.py b/vllm/a.py\n" + header, "p").files == (expected,)


def test_a_rename_has_two_paths() -> None:
    data = b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
    diff = unified.parse(data, "p")
    assert diff.files == (FileDiff("x", "y"),)
    assert diff.paths == ("x", "y")


def test_quoted_names_are_unquoted() -> None:
    data = b'diff --git "a/\\303\\244 b.py" "b/\\303\\244 b.py"\nnew file mode 100644\n'
    assert unified.parse(data, "p").paths == ("ä b.py",)


def test_a_line_without_newline_keeps_none() -> None:
    data = _HEAD + b"@@ -1,2 +1,2 @@\n one\n-two\n\\ No newline at end of file\n+zwei\n\\ No newline at end of file\n"
    (hunk,) = unified.parse(data, "p").files[0].hunks
    assert (hunk.old[-1], hunk.new[-1]) == (b"two", b"zwei")


def test_carriage_returns_are_text() -> None:
    data = _HEAD + b"@@ -1 +1 @@\n-two\r\n+zwei\r\n"
    assert unified.parse(data, "p").files[0].hunks[0].new == (b"zwei\r\n",)


def test_reverse_twice_is_the_same() -> None:
    diff = Diff("p", (FileDiff("x", None, (Hunk(1, 0, (("-", b"a\n"),)),), 0o644, None), FileDiff("a", "b")))
    assert unified.reverse(diff).files == (
        FileDiff(None, "x", (Hunk(0, 1, (("+", b"a\n"),)),), None, 0o644),
        FileDiff("b", "a"),
    )
    assert unified.reverse(unified.reverse(diff)) == diff


@pytest.mark.parametrize(
    ("hunk", "words"),
    [
        (b"@@ -1,3 +1,2 @@\n one\n-two\n+zwei\n", "1 more old and 0 more new lines"),
        (b"@@ -1,2 +1,1 @@\n one\n-two\n+zwei\n", "the next hunk, the next file, or the end"),
        (b"@@ -1,1 +1,2 @@\n one\n-two\n+zwei\n", "as many lines as the hunk's header says"),
        (b"@@ -1,2 +1,2 @@\n\n-two\n+zwei\n", "2 more old and 2 more new"),
        (b"@@ -a +1 @@\n", "@@ -LINE,COUNT +LINE,COUNT @@"),
        (b"@@ -0,1 +1,1 @@\n-a\n+b\n", "line 0 only where the count is 0"),
        (b"@@ -1,2 +1,2 @@\n one\n two\n", "only context"),
        (b"@@ -5,2 +5,2 @@\n one\n-two\n+zwei\n@@ -5,2 +5,2 @@\n one\n-two\n+zwei\n", "not overlapping"),
        (b"@@ -5,2 +6,2 @@\n one\n-two\n+zwei\n", "+5, by the hunks before it"),
        (b"@@ -1,2 +1,1 @@\n-one\n\\ No newline at end of file\n-two\n+zwei\n", "only as the last of its side"),
        (b"@@ -1,2 +1,2 @@\n one\n-two\n+zwei", "a newline at the end of the patch file"),
        (_HUNK + b"junk\n", "the next hunk, the next file, or the end"),
    ],
)
def test_a_hunk_that_does_not_add_up_is_refused(hunk: bytes, words: str) -> None:
    assert words in _refused(_HEAD + hunk)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "at least one file"),
        (b"just text\n", "at least one file"),
        (b"--- a/x\n", "begins with `+++ `"),
        (b"--- x\n+++ x\n" + _HUNK, "below a/"),
        (b"--- a/x\n+++ b/y\n" + _HUNK, "one path on both sides, or a rename"),
        (b"--- /dev/null\n+++ /dev/null\n" + _HUNK, "/dev/null on both"),
        (b"--- /dev/null\n+++ b/x\n" + _HUNK, "only added lines in a new file"),
        (b"--- a/x\n+++ /dev/null\n" + _HUNK, "only removed lines in a deleted file"),
        (b"diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\n", "a binary file"),
        (b"diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n", "a binary file"),
        (b"diff --git a/x b/y\nsimilarity index 90%\ncopy from x\ncopy to y\n", "a copied file"),
        (b"diff --git a/x b/y\nrename from x\n", "only one of them"),
        (b"diff --git a/x b/x\nnew file mode 120000\n", "the mode of a regular file"),
        (b"diff --git a/x b/x\nnew file mode 160000\n", "the mode of a regular file"),
        (b"diff --git a/x b/x\nindex 1..2\n", "a header that changes something"),
        (b"diff --git a/x b/yy\nnew file mode 100644\n", "with one path"),
        (_HEAD + _HUNK + _HEAD + _HUNK, "vllm/a.py twice"),
    ],
)
def test_a_file_that_is_not_plain_is_refused(data: bytes, words: str) -> None:
    assert words in _refused(data)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (b"../x", "`..` part"),
        (b"vllm/../../x", "`..` part"),
        (b"./x", "`.` or"),
        (b"vllm//x", "an empty"),
        (b"/etc/passwd", "is absolute"),
        (b".git/hooks/pre-commit", "goes into .git"),
        (b"vllm/.GIT/config", "goes into .git"),
        (b"a\\b", "backslash"),
        (b'"b/a\\nb"', "control character"),
    ],
)
def test_a_path_that_leaves_the_tree_is_refused(path: bytes, words: str) -> None:
    old, new = (path.replace(b"b/", b"a/", 1), path) if path.startswith(b'"') else (b"a/" + path, b"b/" + path)
    assert words in _refused(b"--- " + old + b"\n+++ " + new + b"\n" + _HUNK)


def test_a_rename_out_of_the_tree_is_refused() -> None:
    assert "`..` part" in _refused(b"diff --git a/x b/y\nrename from x\nrename to ../y\n")


def test_the_line_of_the_patch_file_is_named() -> None:
    assert _refused(_HEAD + b"@@ -1,3 +1,2 @@\n one\n-two\n+zwei\n").startswith("p.patch:7 ")


@pytest.mark.parametrize("digits", [b"9" * 4301, b"9" * 10])
def test_a_line_number_that_no_file_has(digits: bytes) -> None:
    assert "@@" in _refused(_HEAD + _HUNK.replace(b"-1,", b"-" + digits + b","))
