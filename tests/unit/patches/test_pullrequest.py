"""A pull request's text as a patch, and beside the patch that was taken from it: tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import patching, pullrequest
from nvllm.patches.pullrequest import PullRequest
from nvllm.patches.series import Patch, Upstream
from nvllm.patches.source import ArchiveTree
from nvllm.patches.unified import Diff
from support.gitrepo import git

REPOSITORY, REFERENCE = "vllm-project/vllm", "vllm-project/vllm#12345"
PATH, NEW = "vllm/a.py", "vllm/b.py"
OLD = b"".join(b"line %d\n" % number for number in range(30))
HEAD, BASE, NEXT = 40 * "b", 40 * "c", 40 * "d"
TREE = ArchiveTree({PATH: OLD, NEW: None})


def part(path: str, line: int, old: str, new: str) -> str:
    """Return a diff of LINE of PATH, which is OLD before and NEW after."""
    around = f" line {line - 1}\n-{old}\n+{new}\n line {line + 1}\n"
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -{line},3 +{line},3 @@\n{around}"


def mail(commit: str, subject: str, diff: str, after: str = "") -> str:
    head = f"From {commit} Mon Sep 17 00:00:00 2001\nFrom: a\nSubject: [PATCH 1/2] {subject}\n\n---\n"
    return f"{head}{diff}{after}-- \n2.50.0\n\n"


FIRST = part(PATH, 15, "line 15", "first")
ADDED = f"diff --git a/{NEW} b/{NEW}\nnew file mode 100755\n--- /dev/null\n+++ b/{NEW}\n@@ -0,0 +1 @@\n+new\n"
DOCS = part("docs/a.md", 3, "a", "b")
ONE = mail(HEAD, "Do it", FIRST)
TWO = mail(40 * "a", "Do it", FIRST + DOCS) + mail(HEAD, "Do more", part(PATH, 15, "first", "second") + ADDED)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("12345.patch", REFERENCE),
        ("../work/12345.diff", REFERENCE),
        ("https://github.com/vllm-project/vllm/pull/12345.patch", REFERENCE),
        ("http://127.0.0.1:1/mirror/owner/a.fork/pull/7.diff", "owner/a.fork#7"),
    ],
)
def test_the_name_says_which_pull_request_it_is(where: str, expected: str) -> None:
    assert pullrequest.reference(where, "--from-pr", REPOSITORY) == expected


@pytest.mark.parametrize("where", ["fix.patch", "12345", "https://github.com/vllm-project/vllm/pull/12345"])
def test_a_name_without_the_number_is_refused(where: str) -> None:
    with pytest.raises(Refused) as refused:
        pullrequest.reference(where, "--from-pr", REPOSITORY)
    assert [(one.code, one.where, one.found) for one in refused.value.refusals] == [("NV108", "--from-pr", where)]


def read(text: str) -> PullRequest:
    return pullrequest.read(text.encode(), REFERENCE, "12345.patch", ())


READ: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "one commit": (ONE, (HEAD, None, [("do-it", "Do it", (PATH,))], ())),
    "with its base": (
        mail(HEAD, "Do it", FIRST, f"\nbase-commit: {BASE}\n"),
        (HEAD, BASE, [("do-it", "Do it", (PATH,))], ()),
    ),
    "two commits, one of docs too": (
        TWO,
        (HEAD, None, [("do-it", "Do it", (PATH,)), ("do-more", "Do more", (PATH, NEW))], ("docs/a.md",)),
    ),
    "a commit of docs alone": (
        mail(HEAD, "Do it", FIRST) + mail(NEXT, "Tell it", DOCS),
        (NEXT, None, [("do-it", "Do it", (PATH,))], ("docs/a.md",)),
    ),
    "a .diff": (FIRST + DOCS, (None, None, [("pull-12345", f"Pull request {REFERENCE}", (PATH,))], ("docs/a.md",))),
}


def test_each_text_is_read() -> None:
    for name, (text, expected) in READ.items():
        request = read(text)
        changes = [(one.id, one.summary, one.diff.paths) for one in request.changes]
        assert (request.head, request.base, changes, request.outside) == expected, name
        assert request.upstream == Upstream("open", REFERENCE, None, request.head, request.base)


def test_what_git_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    git(tmp_path, "init", "--quiet")
    commits: list[str] = []
    for subject, text in (("Begin", OLD), ("Do it", OLD.replace(b"line 15", b"first")), ("Do more", b"new\n" + OLD)):
        (tmp_path / PATH).write_bytes(text)
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--message", subject)
        commits.append(git(tmp_path, "rev-parse", "HEAD").decode().strip())
    base, _, head = commits
    for options, named in ((("--base", base), base), (("--no-base",), None)):
        request = read(git(tmp_path, "format-patch", "--stdout", *options, f"{base}..HEAD").decode())
        assert (request.head, request.base, [one.id for one in request.changes]) == (head, named, ["do-it", "do-more"])


def test_a_pull_request_without_a_file_of_an_image_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        read(DOCS)
    assert [(one.code, one.found) for one in refused.value.refusals] == [("NV104", "docs/a.md")]


def test_commits_are_joined_on_the_source() -> None:
    changes = read(TWO).changes
    whole = pullrequest.whole(TREE, changes, "12345.patch")
    assert (whole.id, whole.summary) == ("do-it", "Do it")
    assert patching.apply(TREE, whole.diff) == {PATH: OLD.replace(b"line 15\n", b"second\n"), NEW: b"new\n"}
    assert patching.modes(whole.diff) == {NEW: 0o755}
    for tree, code in ((None, "NV108"), (ArchiveTree({PATH: b"other\n", NEW: None}), "NV301")):
        with pytest.raises(Refused) as refused:
            pullrequest.whole(tree, changes, "12345.patch")
        assert {one.code for one in refused.value.refusals} == {code}


def carried(head: str | None) -> Patch:
    return Patch("do-it", "carried", "Do it", Upstream("open", REFERENCE, None, head), (PATH,), ("t",))


@pytest.mark.parametrize(
    ("now", "taken", "since"),
    [
        (ONE, HEAD, "same"),
        (mail(NEXT, "Do it", FIRST.replace("-15,3 +15,3", "-95,3 +95,3")), HEAD, "same"),
        (mail(NEXT, "Do it", FIRST.replace(" line 16", " other")), HEAD, "same"),
        (mail(NEXT, "Do it", FIRST.replace("+first", "+otherwise")), HEAD, "changed"),
        (mail(HEAD, "Do it", FIRST.replace("+first", "+otherwise")), HEAD, "adapted"),
        (FIRST.replace("+first", "+otherwise"), None, "changed"),
        (mail(NEXT, "Do it", FIRST + ADDED), HEAD, "changed"),
        (mail(NEXT, "Do it", FIRST + DOCS), HEAD, "same"),
    ],
)
def test_what_changed_since_is_known(now: str, taken: str | None, since: str) -> None:
    request = read(now)
    (change,) = request.changes
    diff: Diff = read(ONE).changes[0].diff
    row = pullrequest.compared(carried(taken), diff, change.diff, request)
    assert (row.id, row.reference, row.head, row.now, row.since) == ("do-it", REFERENCE, taken, request.head, since)
    assert (row.range_diff != ()) == (since != "same" or " other" in now)
