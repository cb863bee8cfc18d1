"""What the tests of serving share: a supervisor with an engine that is made up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.host import locks
from nvllm.host.locks import HeldLocks, Holder
from nvllm.serve import startup, supervisor
from support.plansamples import PLAN, FrontEnd, places
from support.serve_world import (
    Noted,
    World,
    world_of,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "POLL", 0.005)


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[HeldLocks]:
    holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve demo --profile eager", PLAN.instance)
    with locks.acquire_all(places(tmp_path).locks, supervisor.keys(PLAN), holder) as held:
        yield held


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def world(tmp_path: Path, front: FrontEnd, taken: HeldLocks, noted: Noted) -> World:
    return world_of(places(tmp_path), front, taken, noted)
