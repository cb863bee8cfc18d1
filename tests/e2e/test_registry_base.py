"""A whole build on a base of a registry: pulled by the real engine from a registry on loopback, and built upon.

The image is small and is never run: the wheels are samples. What holds here holds by digests.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.core.lock import LockedRegistryBase
from nvllm.core.progress import Silent
from nvllm.engine import engine
from nvllm.image import identity, registry_base
from support import registry
from support.layersamples import World
from support.loopback import serving

pytestmark = pytest.mark.engine

FILES = {"linux/amd64": {"marker": b"the base for amd64"}, "linux/arm64": {"marker": b"the base for arm64"}}


@pytest.fixture
def world(tmp_path: Path, docker_client: DockerClient) -> Iterator[World]:
    """A small image whose base the engine pulls; taken away again."""
    with serving() as site:
        name = registry.publish(site, f"base-{uuid.uuid4().hex[:8]}", FILES)
        made = World(tmp_path)
        made.lock = replace(made.lock, base=LockedRegistryBase("registry", "3.12", name, "/usr/local/bin/python3.12"))
        yield made
        docker_client.images.remove(name, force=True)


def test_the_base_is_pulled_by_digest_and_built_upon(world: World, tmp_path: Path, docker_client: DockerClient) -> None:
    held, base = engine.require(), world.lock.base
    assert isinstance(base, LockedRegistryBase)
    below = registry_base.layers(base, "linux/amd64", held, Silent(), offline=False)
    diff_ids = tuple(one.diff_id for one in below)
    assert diff_ids == (registry.digest(registry.layer(FILES["linux/amd64"])),)
    assert registry_base.layers(base, "linux/amd64", held, Silent(), offline=True) == below
    builder = world.builder(tmp_path / "cache", "guard")
    finished = builder.image(below)
    tag = f"nvllm:test-{uuid.uuid4().hex[:8]}"
    held.load(finished, [tag], Silent())
    try:
        found = held.image(tag)
        assert found is not None
        assert found.id in finished.ids
        assert found.diff_ids == finished.diff_ids
        assert found.diff_ids[: len(below)] == diff_ids
        assert held.read_file(found.id, "/marker") == b"the base for amd64"
        said = held.read_file(found.id, "/" + identity.IDENTITY_PATH)
        assert said is not None
        assert builder.build.build_hash in said.decode()
    finally:
        docker_client.images.remove(tag, force=True)


def test_the_upper_layers_need_no_base_and_are_the_same_bytes(world: World, tmp_path: Path) -> None:
    base = world.lock.base
    assert isinstance(base, LockedRegistryBase)
    alone = world.builder(tmp_path / "alone", "guard").upper()
    below = registry_base.layers(base, "linux/amd64", engine.require(), Silent(), offline=False)
    whole = world.builder(tmp_path / "whole", "guard").image(below)
    named = [layer.diff_id for layer in alone]
    assert named == [layer.diff_id for layer in whole.layers if layer.kind not in {"wheels", "identity"}]
    assert [layer.path.read_bytes() for layer in alone] == [
        layer.path.read_bytes() for layer in whole.layers if layer.diff_id in named
    ]
    assert len(whole.diff_ids) == len(below) + len(whole.layers)
