"""NV509, foreign container, on a real engine: a container that has the instance's name, but is not ours."""

from __future__ import annotations

import pytest
from docker import DockerClient

from nvllm.host.facts import INSTANCE_LABEL
from support.engine_world import BuiltImage, Worlds

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("labels", [{}, {INSTANCE_LABEL: "renamed-by-somebody"}])
def test_it_is_neither_replaced_nor_stopped(
    worlds: Worlds, docker_client: DockerClient, built_image: BuiltImage, labels: dict[str, str]
) -> None:
    world = worlds.make()
    foreign = docker_client.containers.create(built_image.id, command=["-"], name=world.instance(), labels=labels)
    done = world.serve("--detach")
    assert (done.code, done.codes) == (3, ["NV509"])
    assert done.refusal["where"] == f"docker engine: container {world.instance()}"
    assert str(foreign.id)[:12] in done.refusal["found"]
    assert done.refusal["cure"] == f"docker rename {str(foreign.id)[:12]} {world.instance()}-foreign"
    stop = world.nvllm("stop", world.instance(), "--json")
    assert (stop.code, stop.codes) == (2, ["NV107"])
    assert [one.id for one in world.containers(docker_client)] == [foreign.id]
    # What the refusal tells the user to do works.
    _, old, new = done.refusal["cure"].rsplit(" ", 2)
    docker_client.containers.get(old).rename(new)
    assert world.serve("--dry-run").code == 0
