"""What the tests of serving share: a project on a host without an engine; a supervisor with one that is made up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.core.paths import Places, Project
from nvllm.host import locks
from nvllm.host.locks import HeldLocks, Holder
from nvllm.serve import startup, supervisor
from support.plansamples import PLAN, FrontEnd, places, project
from support.serve_world import (
    Noted,
    World,
    world_of,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "POLL", 0.005)


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own, no engine, and no program of NVIDIA's on PATH."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("NVLLM_MODELS", raising=False)


@pytest.fixture(name="places")
def its_places(tmp_path: Path) -> Places:
    return places(tmp_path)


@pytest.fixture
def demo(tmp_path: Path) -> Project:
    return project(tmp_path)


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
