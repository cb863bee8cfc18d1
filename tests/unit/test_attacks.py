"""Killed, without power, on a full disk, or beside another: at every boundary the next command finds old or new."""

from __future__ import annotations

from pathlib import Path

import pytest

import boundaries
from attacked import SCENARIOS
from boundaries import WAYS, Way


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_old_or_new(tmp_path: Path, name: str, way: Way) -> None:
    outcomes = list(boundaries.fail(SCENARIOS[name], way, tmp_path))
    assert "old" in {one.found for one in outcomes}


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_at_once(tmp_path: Path, name: str) -> None:
    outcomes = list(boundaries.race(SCENARIOS[name], tmp_path))
    assert outcomes
