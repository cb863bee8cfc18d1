"""Debian's docker-registry, that a test can kill and start again; and the storage of one with image and blessing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine_world import IMAGE, Worlds
from support.real_registry import Offered, RealRegistry


@pytest.fixture(scope="session")
def offered(session_worlds: Worlds, tmp_path_factory: pytest.TempPathFactory) -> Offered:
    world = session_worlds.make()
    profile = world.profile("blessed")
    assert world.nvllm("bless", IMAGE, "--profile", profile, "--json").result["unsafe"] is False
    registry = RealRegistry(tmp_path_factory.mktemp("registry"))
    registry.start()
    try:
        pushed = world.nvllm("push", registry.name, IMAGE, "--blessing", profile, "--json").result
    finally:
        registry.kill()
    return Offered(world, profile, registry.directory, pushed)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealRegistry]:
    registry = RealRegistry(tmp_path / "registry")
    registry.start()
    try:
        yield registry
    finally:
        registry.kill()
