"""The watchdog on the real engine: MemAvailable falls below the floor by what the engine itself takes."""

from __future__ import annotations

import pytest
from docker import DockerClient

from nvllm.host import facts
from support import question_samples
from support.engine_world import IMAGE, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

ROOM = 300 << 20
"""Bytes that an engine may take; the smallest one takes three times as much."""


def test_an_engine_that_takes_the_hosts_memory_is_ended(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    floor = (facts.memory()["MemAvailable"] - ROOM) >> 20
    world.edit({"    gpu: null\n": f"    gpu: null\n    campaign: {{memory-floor: {floor}MiB}}\n"})
    output, data = world.directory / "evidence", question_samples.write(world.directory / "questions.jsonl", 4)
    asked = ("--sentinels", "page-zeroer", "--probe", "gsm8k", "--data", str(data), "--length", "24", "--runs", "1")
    done = world.nvllm("ablate", IMAGE, "--profile", world.profile(), *asked, "--output", str(output), "--json")
    assert (done.code, done.codes) == (3, ["NV519"]), done
    (refusal,) = done.document["refusals"]
    assert refusal["expected"].startswith(f"at least {floor} MiB of MemAvailable")
    assert int(refusal["found"].partition(" MiB")[0]) < floor
    assert f"--output {output}" in refusal["cure"]
    assert list(output.glob("arms/*/*/verdict.json")) == []
    named = [str(one.name) for one in docker_client.containers.list(all=True)]
    assert not [name for name in named if name.startswith(f"{world.instance()}-ablate-")]
