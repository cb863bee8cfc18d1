"""`nvllm ablate` on the real engine: four arms over two sentinels, a dead sentinel, a patch that is always on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from support import question_samples
from support.bisect_engine import LICENSE, Extra, built_with
from support.engine_world import IMAGE, Done, World, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

PAIR = ("mamba-block-ids", "page-zeroer")
DEAD = "test-dead"
"""The sentinel of a patch of the test that never has anything to do."""

ASKS = f'from vllm.nvllm.switches import switch\n\nswitch("{DEAD}")\n'

SHOUTS = 'print("nvllm.sentinel name=mamba-block-ids first_fire", flush=True)\n'


def ablate(world: World, sentinels: str, arms: str, output: Path) -> Done:
    data = question_samples.write(world.directory / "questions.jsonl", 8)
    options = ("--probe", "gsm8k", "--data", str(data), "--length", "24", "--runs", "1", "--output", str(output))
    profile = ("--profile", world.profile(), "--sentinels", sentinels, "--arms", arms)
    return world.nvllm("ablate", IMAGE, *profile, *options, "--json")


def outcomes(found: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["outcome"] for one in found["arms"]}


def broken(output: Path, arm: str) -> list[str]:
    verdict = json.loads((output / "arms" / arm / "run-1" / "verdict.json").read_text())
    return [one["name"] for one in verdict["checks"] if not one["holds"]]


@pytest.fixture
def idle(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    """A world whose image has a patch that asks its sentinel and does nothing."""
    extra = Extra(DEAD, "vllm/v1/worker/cpu_worker.py", LICENSE, ASKS, ("sentinels",), DEAD)
    made = worlds.make({"sentinels: &every [": f"sentinels: &every [{DEAD}, "})
    with built_with(made, docker_client, extra) as world:
        yield world


def test_four_arms_end_to_end_and_a_dead_sentinel(idle: World) -> None:
    world = idle
    output, both = world.directory / "evidence", "+".join(PAIR)
    done = ablate(world, ",".join((*PAIR, DEAD)), f"none,{','.join(PAIR)},{both},{DEAD}", output)
    found = done.document["result"]
    assert done.codes == ["NV854"], done
    assert outcomes(found) == {**dict.fromkeys(("none", *PAIR, both), "passed"), DEAD: "invalid"}
    assert broken(output, DEAD) == [f"sentinel {DEAD}"]
    assert {one["factor"] for one in found["effects"]} == {*PAIR, " x ".join(PAIR)}
    for arm in ("none", *PAIR, both):
        leg = output / "arms" / arm / "run-1"
        mounted = {one.name for one in (leg / "run").iterdir()}
        assert mounted == {"launch.json", *(name for name in PAIR if name in arm)}
        assert len((leg / "perq.jsonl").read_text().splitlines()) == 8
        assert "vllm:kv_cache_usage_perc" in (leg / "metrics-after.txt").read_text()
    again = ablate(world, ",".join((*PAIR, DEAD)), f"none,{','.join(PAIR)},{both},{DEAD}", output)
    assert again.document["result"] == found  # nothing was run again
    assert again.seconds < 60
    html = world.directory / "report.html"
    assert world.nvllm("report", str(output), "--html", str(html)).code == 0
    assert "nvllm" not in html.read_text().partition("<h1>")[0]


@pytest.fixture
def stuck(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    """A world whose image has a patch that says to have fired whatever its sentinel says."""
    extra = Extra("test-stuck", "vllm/v1/engine/core.py", LICENSE, SHOUTS)
    with built_with(worlds.make(), docker_client, extra) as world:
        yield world


def test_a_patch_that_is_always_on_is_caught(stuck: World) -> None:
    output = stuck.directory / "evidence"
    done = ablate(stuck, "mamba-block-ids", "none,all", output)
    assert done.codes == ["NV854"], done
    assert outcomes(done.document["result"]) == {"none": "invalid", "mamba-block-ids": "passed"}
    assert broken(output, "none") == ["sentinel mamba-block-ids"]
