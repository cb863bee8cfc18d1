"""Trees of rejected compiles that stay for study: for how long, why, and what is no fault of a tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.bless import rejected
from nvllm.core.refusal import Refusal, Refused

NOW = 1_795_000_000.0
TREE = "0" * 64


def refused(*codes: str) -> Refused:
    return Refused([Refusal(code, "trial 1", "one answer", "another", "look into it") for code in codes])


@pytest.fixture
def bless(tmp_path: Path) -> Path:
    """The directory of a bless, below one of blesses."""
    directory = tmp_path / "nvllm-demo-eager" / "1"
    directory.mkdir(parents=True)
    return directory


def test_a_tree_stays_until_its_day_and_says_why(tmp_path: Path, bless: Path) -> None:
    record = rejected.keep(bless, TREE, 3, refused("NV912"), NOW)
    assert record is not None
    assert (record.tree, record.reasons) == (TREE, ("NV912 trial 1: another",))
    assert list(rejected.kept(tmp_path, NOW + 3 * 86400 - 1)) == [(bless, record)]
    assert list(rejected.kept(tmp_path, NOW + 3 * 86400)) == []


@pytest.mark.parametrize("codes", [("NV519",), ("NV912", "NV519")])
def test_the_hosts_fault_rejects_no_tree(bless: Path, codes: tuple[str, ...]) -> None:
    assert rejected.keep(bless, TREE, 3, refused(*codes), NOW) is None
    assert list(bless.iterdir()) == []


@pytest.mark.parametrize("damage", ["", "{}", '{"schema": "nvllm.rejected-tree/1"', "[]"])
def test_a_damaged_record_keeps_nothing(tmp_path: Path, bless: Path, damage: str) -> None:
    rejected.keep(bless, TREE, 3, refused("NV912"), NOW)
    (bless / "rejected.json").write_text(damage)
    assert list(rejected.kept(tmp_path, NOW)) == []
