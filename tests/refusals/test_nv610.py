"""NV610, not a development tree: git cannot do in a directory what `nvllm dev` needs of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.port import devrecord
from nvllm.sources.worktree import WorkTree


def test_a_directory_that_dev_start_did_not_make(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        devrecord.read(tmp_path)
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.found) == ("NV610", "none")
    assert refusal.cure == "name a directory that `nvllm dev start` has made"


def test_a_record_of_another_form(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/nvllm.json").write_text('{"schema": "nvllm.dev-tree/1"}')
    with pytest.raises(Refused) as refused:
        devrecord.read(tmp_path)
    assert {refusal.code for refusal in refused.value.refusals} == {"NV610"}


def test_what_git_refuses_is_shown(tmp_path: Path) -> None:
    work = WorkTree(tmp_path)
    work.create()
    with pytest.raises(Refused) as refused:
        work.merges("no-such-commit")
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.expected) == ("NV610", "git rev-list in a work tree")
    assert "no-such-commit" in refusal.found
