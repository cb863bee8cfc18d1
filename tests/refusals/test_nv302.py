"""NV302, image missing: the engine does not hold the image of the build hash, or nobody here built it."""

from __future__ import annotations

import pytest
from docker import DockerClient

from support.engine_world import IMAGE, OTHER_BUILD, BuiltImage, Worlds, build_hash, tagged

pytestmark = pytest.mark.engine


def test_an_image_that_was_never_built(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make(OTHER_BUILD)
    found = build_hash(world)
    done = world.serve()
    assert (done.code, done.codes) == (3, ["NV302"])
    assert done.refusal["where"] == f"docker engine: nvllm:{IMAGE}-{found[:12]}"
    assert done.refusal["expected"] == f"the image of build hash {found[:12]}"
    assert done.refusal["found"] == "no such image"
    assert done.refusal["cure"] == f"nvllm build {IMAGE}"
    assert world.containers(docker_client) == []


def test_an_image_of_that_name_which_this_host_did_not_build(
    worlds: Worlds, docker_client: DockerClient, built_image: BuiltImage
) -> None:
    world = worlds.make(OTHER_BUILD)
    with tagged(docker_client, built_image.id, world):
        done = world.serve()
    assert (done.code, done.codes) == (3, ["NV302"])
    assert done.refusal["found"] == "an image without a build record on this host"
    assert world.containers(docker_client) == []
