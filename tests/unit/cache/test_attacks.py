"""Killed, without power, on a full disk, or beside another: at every boundary the next command finds old or new."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvllm.cache import staging
from nvllm.cache.store import TreeStore
from support import boundaries, tampering
from support.attacked import SCENARIOS
from support.blessings_world import CURE
from support.boundaries import WAYS, Way


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_old_or_new(tmp_path: Path, name: str, way: Way) -> None:
    outcomes = list(boundaries.fail(SCENARIOS[name], way, tmp_path))
    assert "old" in {one.found for one in outcomes}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCENARIOS)
def test_two_at_once(tmp_path: Path, name: str) -> None:
    outcomes = list(boundaries.race(SCENARIOS[name], tmp_path))
    assert outcomes


def test_a_cache_that_nobody_touched_passes(tmp_path: Path) -> None:
    """Or the matrix below would show nothing."""
    store = TreeStore(tmp_path / "trees")
    tree = store.adopt(tampering.cache(tmp_path / "fresh"), CURE)
    staged = store.stage(tree, tmp_path / "staged", CURE)
    tampering.gate_world(tmp_path, staged.path, tree)
    assert len(tree.files) == 24
    assert tampering.gate_findings(tmp_path) == set()
    assert staging.recheck(staged, CURE) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*tampering.TAMPERINGS, *tampering.SWAPS])
def test_every_file_and_every_tampering_is_refused_by_each(tmp_path: Path, name: str) -> None:
    outcomes = list(tampering.matrix(tmp_path, name))
    assert [one.path for one in outcomes] == list(tampering.SIZES)
    assert [one for one in outcomes if not (one.before_start and one.by_gate and one.by_recheck)] == []


def test_a_file_that_is_given_away(tmp_path: Path) -> None:
    """Only root can, and root can do everything else as well. The gate does not look: its users may be others."""
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            list(tampering.matrix(tmp_path, "chown"))
        return
    outcomes = list(tampering.matrix(tmp_path, "chown"))
    assert [one.path for one in outcomes] == list(tampering.SIZES)
    assert {(one.before_start, one.by_gate, one.by_recheck) for one in outcomes} == {(True, False, True)}
