"""Commits as git says them, asked of real repositories on this disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.sources import commits
from support import gitrepo


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the annotated tag v0.28.0, and two commits after it."""
    root = tmp_path / commits.REPOSITORY
    gitrepo.make(root)
    gitrepo.git(root, "tag", "--annotate", "--message", "a release", "v0.28.0")
    for number in (1, 2):
        (root / "vllm/engine/core.py").write_text(f"x = {number + 1}\n")
        gitrepo.git(root, "commit", "--quiet", "--all", "--message", f"change {number}")
    return root


def head(root: Path, name: str = "HEAD") -> str:
    return gitrepo.git(root, "rev-parse", f"{name}^{{commit}}").decode().strip()


def test_the_commit_of_a_tag(checkout: Path) -> None:
    mirror = {"NVLLM_GITHUB_MIRROR": str(checkout.parents[1])}
    assert commits.tagged("0.28.0", mirror) == head(checkout, "v0.28.0")
    assert commits.tagged("0.28", mirror) is None
    assert commits.tagged("0.28.0", {"NVLLM_GITHUB_MIRROR": "/nonexistent"}) is None


def test_a_checkout_knows_tags_and_beginnings_of_ids(checkout: Path) -> None:
    commit = head(checkout, "v0.28.0")
    assert commits.of_checkout(checkout, ["refs/tags/v0.28.0"]) == commit
    assert commits.of_checkout(checkout, ["refs/tags/v9", commit[:9]]) == commit
    assert commits.of_checkout(checkout, ["refs/tags/v9"]) is None


def test_the_commits_after_a_release_are_mails(checkout: Path) -> None:
    text = commits.mails(checkout, head(checkout, "v0.28.0"), "--from-branch").decode()
    assert [line for line in text.splitlines() if line.startswith("Subject: ")] == [
        "Subject: change 1",
        "Subject: change 2",
    ]


def test_what_is_no_checkout_and_no_descendant_is_refused(checkout: Path, tmp_path: Path) -> None:
    for ask in (
        lambda: commits.of_checkout(tmp_path / "none", []),
        lambda: commits.mails(checkout, "1" * 40, "--from-branch"),
    ):
        with pytest.raises(Refused) as caught:
            ask()
        assert [refusal.code for refusal in caught.value.refusals] == ["NV108"]
