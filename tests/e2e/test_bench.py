"""`nvllm bench --vs` on the real engine: a planted latency of 5 % is found, and two equal profiles are called equal.

Each step of the engine takes 20 ms longer than it must, and no processor time for that. Without it the steps of this
model take 2.5 ms, and beside other programs they differed by 15 % from one leg to the next. Eight runs find 5 % even if
the ratio of a run varies by 2 %, as it does beside other programs (`test_how_many_runs_find_5_percent`).

A request that comes in the middle of a step waits for its end, so the median time to a first token of 12 requests
differed by some 10 % from run to run, and four runs could not call equal legs equal. With 48 it differed by 3.5 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from docker import DockerClient

from support.bisect_engine import Extra, built_with
from support.engine_world import IMAGE, World, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

SLOWER = '''\
    def execute_model(self, scheduler_output):
        """Do a step, and sleep, longer by that share of what a step takes which NVLLM_TEST_SHARE names."""
        import time

        done = super().execute_model(scheduler_output)
        took = min(time.monotonic() - getattr(self, "_last", time.monotonic()), 0.1) + 0.02
        time.sleep(0.02 + float(os.environ["NVLLM_TEST_SHARE"]) * took)
        self._last = time.monotonic()
        return done

'''
PLACE = "    def profile(self, is_start: bool = True, profile_prefix: str | None = None):\n"
PLANT = Extra("test-latency", "vllm/v1/worker/cpu_worker.py", PLACE, SLOWER)
CHANGES = {
    "    environment: {}\n    sentinels: &every": '    environment: {NVLLM_TEST_SHARE: "0"}\n    sentinels: &every',
    "    environment: {}\n    sentinels: [page-zeroer]": (
        '    environment: {NVLLM_TEST_SHARE: "0.05"}\n    sentinels: *every'
    ),
}
LOAD = ("--requests", "48", "--concurrency", "2", "--prompt-len", "32", "--output-len", "32")


@pytest.fixture
def planted(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    """A world whose profile `ablation` is `eager`, but for 5 % more time in each step of the engine."""
    with built_with(worlds.make(CHANGES), docker_client, PLANT) as world:
        yield world


def bench(world: World, other: str, runs: int, *more: str) -> dict[str, Any]:
    """Compare the profile `eager` with OTHER in so many RUNS."""
    profiles = ("--profile", world.profile(), "--vs", world.profile(other))
    return world.nvllm("bench", IMAGE, *profiles, *LOAD, "--runs", str(runs), *more, "--json").result


def intervals(found: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {one["measure"]: (one["low"], one["high"]) for one in found["effects"]}


def test_a_planted_latency_of_5_percent_is_found(planted: World) -> None:
    found = bench(planted, "ablation", 8)
    assert [one["finding"] for one in found["findings"]] == ["loss"], found
    low, high = intervals(found)["p50 itl, ms"]
    # A step that sleeps longer also wakes later: 6.6 % were measured where 5 % were planted.
    assert 1 < low < 1.1
    assert 1.05 < high < 1.15


def test_two_equal_legs_are_called_equal(planted: World) -> None:
    found = bench(planted, "eager", 8, "--margin", "25%")
    assert [one["finding"] for one in found["findings"]] == ["neutral"], found
    low, high = intervals(found)["p50 itl, ms"]
    assert low <= 1 <= high
