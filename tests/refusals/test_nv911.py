"""NV911, blessing not written: a cache or manifest could not be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.cache.store import TreeStore
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, TREE, bless, blessings, cache


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "trees").write_bytes(b"")
    with pytest.raises(Refused) as caught:
        TreeStore(tmp_path / "trees").adopt(cache(tmp_path / "fresh"), CURE)
    (one,) = caught.value.refusals
    assert (one.code, one.kind, one.where) == ("NV911", "failed", str(tmp_path / "trees"))
    assert (one.expected, one.found) == ("a place that takes what is written", "File exists")
    assert one.cure == f"make room or give access at {tmp_path}, then run the command again"
    assert caught.value.exit_code == 1


def test_a_project_in_which_nothing_can_be_made(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    (tmp_path / "project").write_bytes(b"")
    with pytest.raises(Refused) as caught:
        promotion.promote(held, bless(TREE))
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV911", str(held.directory))]
