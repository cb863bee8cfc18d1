"""NV703, engine died: the container ends before the engine is ready, or after, and says why."""

from __future__ import annotations

import pytest
from docker import DockerClient

from nvllm.host import locks
from support.engine_world import World, Worlds

pytestmark = pytest.mark.engine


def gone(world: World, client: DockerClient) -> None:
    assert world.containers(client) == []
    assert locks.status(world.places.locks) == ()
    assert (world.state()["stage"], world.state()["reason"]) == ("failed", "NV703 engine died")


def test_an_argument_that_vllm_rejects(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make({"max-model-len: 128\n      max-num-seqs: 2": "max-model-len: 1000000\n      max-num-seqs: 2"})
    done = world.serve("--detach")
    assert (done.code, done.codes) == (1, ["NV703"])
    assert done.refusal["where"] == f"container {world.instance()}"
    assert done.refusal["expected"] == "an engine that runs"
    said = done.refusal["found"]
    assert said.startswith("exit status 1; its last lines:\n")
    assert "1000000" in said
    assert "max_model_len" in said
    assert done.refusal["cure"] == f"less {world.run_directory() / 'engine.log'}"
    gone(world, docker_client)


def test_a_memory_limit_that_is_too_small(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make({"memory: 6GiB": "memory: 128MiB", "shared-memory: 512MiB": "shared-memory: 64MiB"})
    done = world.serve("--detach")
    assert (done.code, done.codes) == (1, ["NV703"])
    assert done.refusal["found"].startswith("killed (exit status 137), memory limit 0.1 GiB; its last lines:\n")
    gone(world, docker_client)


def test_a_container_that_the_engine_cannot_start(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make({"memory: 6GiB": "memory: 4MiB"})  # the engine wants 6 MiB at least
    done = world.serve("--detach")
    assert (done.code, done.codes) == (1, ["NV703"])
    assert done.refusal["where"] == f"docker engine: container {world.instance()}"
    assert "memory" in done.refusal["found"].lower()
    gone(world, docker_client)
