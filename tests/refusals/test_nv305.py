"""NV305, base not available: nvllm cannot unpack an image of a registry by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from layersamples import World
from nvllm.lock import LockedRegistryBase
from nvllm.refusal import Refused

IMAGE = f"nvidia/cuda@sha256:{64 * 'a'}"


def test_a_base_of_a_registry(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lock = replace(world.lock, base=LockedRegistryBase("registry", "3.12", IMAGE, "/usr/local/bin/python3.12"))
    with pytest.raises(Refused) as caught:
        world.builder(tmp_path / "cache").image()
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.found) == ("NV305", ".base.image", IMAGE)
    assert found.expected == "a base that nvllm can unpack here"
    assert found.cure.startswith("use a debian base")
    assert not list((tmp_path / "cache").glob("*.tar"))
