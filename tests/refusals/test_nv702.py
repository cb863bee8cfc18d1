"""NV702, start timed out: the engine is not ready within the profile's start timeout, and is ended then."""

from __future__ import annotations

import pytest
from docker import DockerClient

from nvllm.host import locks
from support.engine_world import Worlds

pytestmark = pytest.mark.engine


def test_the_container_is_ended_and_the_phases_are_said(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make({"start-timeout: 300": "start-timeout: 4"})
    done = world.serve("--detach")
    assert (done.code, done.codes) == (1, ["NV702"])
    assert done.refusal["where"] == f"container {world.instance()}"
    assert done.refusal["expected"] == "ready within 4 s, the profile's limits.start-timeout"
    assert done.refusal["found"].startswith("it got as far as: gate ")
    log = world.run_directory() / "engine.log"
    assert done.refusal["cure"] == f"less {log}"
    assert "nvllm.gate" in log.read_text()
    assert done.seconds < 60
    assert world.containers(docker_client) == []
    assert locks.status(world.places.locks) == ()
    assert (world.state()["stage"], world.state()["reason"]) == ("failed", "NV702 start timed out")
