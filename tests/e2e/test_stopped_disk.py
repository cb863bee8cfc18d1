"""The disk of a supervisor stops: a real ext4 that takes no writes, as a failing device or a full snapshot leaves one.

An engine writes to no disk, so only its supervisor can wait for one. The engine is made up here, its front end is real.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.paths import places
from nvllm.core.refusal import Refused
from nvllm.host import locks
from nvllm.host.locks import Holder
from nvllm.serve import supervisor
from support import loop_disk
from support.engine_world import until
from support.plansamples import PLAN, FrontEnd
from support.serve_world import STARTED, Noted, World, world_of

pytestmark = pytest.mark.long  # it needs root

STALL = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with loop_disk.mounted(tmp_path / "disk", 64) as root:
        yield root


@pytest.fixture
def world(disk: Path, front: FrontEnd) -> Iterator[World]:
    """A supervisor with all that it writes on DISK."""
    where = places({"NVLLM_HOME": str(disk / "home")})
    holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve demo --profile eager", PLAN.instance)
    with locks.acquire_all(where.locks, supervisor.keys(PLAN), holder) as taken:
        limits = replace(PLAN.limits, start_timeout=30, stall_timeout=STALL)
        yield world_of(where, front, taken, Noted(), limits=limits)


class Watching(threading.Thread):
    """Watches the engine of WORLD, whose log goes on; ENDED is how that ended."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world = world
        self.ended: Refused | None = None

    def run(self) -> None:
        try:
            self.world.supervisor.watch()
        except Refused as refused:
            self.ended = refused


def log_size(world: World) -> int:
    return world.run.log.stat().st_size


def test_silence_behind_a_stopped_disk_is_a_fault_once_it_takes_writes(
    disk: Path, world: World, front: FrontEnd
) -> None:
    world.engine.says(*STARTED)
    world.supervisor.start()
    watching = Watching(world)
    watching.start()
    with loop_disk.frozen(disk):
        before, deadline = log_size(world), time.monotonic() + 2 * STALL
        while time.monotonic() < deadline:  # the engine goes on, and its supervisor cannot write down what it says
            world.engine.says("(APIServer pid=1) INFO: GET /health 200 OK")
            time.sleep(0.2)
        assert log_size(world) == before
        assert watching.is_alive()
    until(lambda: log_size(world) > before, "the supervisor goes on")
    assert watching.is_alive(), watching.ended  # nobody is blamed for the disk
    with loop_disk.frozen(disk):
        front.health, front.metrics = 503, None
        world.engine.says("(EngineCore pid=22) ERROR")
        time.sleep(STALL)  # while nobody can be told
        began = time.monotonic()
    watching.join(2 * STALL + 5)
    assert watching.ended is not None
    assert [refusal.code for refusal in watching.ended.refusals] == ["NV913"]
    assert time.monotonic() - began < 2 * STALL
