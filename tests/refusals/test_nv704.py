"""NV704, not ready: the engine is healthy and answers, but not with the generation that the profile asks for."""

from __future__ import annotations

import pytest
from docker import DockerClient

from nvllm.host import locks
from support.engine_world import Worlds

pytestmark = pytest.mark.engine


def test_a_generation_that_the_settings_do_not_allow(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make({"max-tokens: 16": "max-tokens: 1000"})  # of a context of 128
    done = world.serve("--detach")
    assert (done.code, done.codes) == (1, ["NV704"])
    assert done.refusal["where"] == f"http://127.0.0.1:{world.port}/v1/completions"
    assert done.refusal["expected"] == "1000 generated tokens"
    assert done.refusal["found"].startswith("HTTP 400: ")
    assert "128" in done.refusal["found"]
    assert done.refusal["cure"] == f"less {world.run_directory() / 'engine.log'}"
    assert world.containers(docker_client) == []
    assert locks.status(world.places.locks) == ()
    assert (world.state()["stage"], world.state()["reason"]) == ("failed", "NV704 not ready")
