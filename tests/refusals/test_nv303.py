"""NV303, image is of another build: the tag names an image that the build hash did not come to."""

from __future__ import annotations

import pytest
from docker import DockerClient

from support.engine_world import IMAGE, OTHER_BUILD, BuiltImage, Worlds, build_hash, record, tagged

pytestmark = pytest.mark.engine


def test_a_tag_that_was_moved(worlds: Worlds, docker_client: DockerClient, built_image: BuiltImage) -> None:
    world = worlds.make(OTHER_BUILD)
    came_to = "sha256:" + "0" * 64
    record(world, came_to)
    with tagged(docker_client, built_image.id, world) as tag:
        done = world.serve("--detach")
    assert tag == f"nvllm:{IMAGE}-{build_hash(world)[:12]}"
    assert (done.code, done.codes) == (3, ["NV303"])
    assert done.refusal["where"] == f"docker engine: {tag}"
    assert (done.refusal["expected"], done.refusal["found"]) == (came_to, built_image.id)
    assert done.refusal["cure"] == f"nvllm build {IMAGE}"  # it gives this home's image a name of its own
    assert world.containers(docker_client) == []
