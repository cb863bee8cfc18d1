"""NV305, base not available: an image of a registry that is not in the engine and cannot come there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.lock import LockedRegistryBase
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine import engine
from nvllm.image import registry_base
from support.layersamples import World
from support.loopback import serving

DIGEST = f"sha256:{64 * 'a'}"


def base(image: str) -> LockedRegistryBase:
    return LockedRegistryBase("registry", "3.12", image, "/usr/local/bin/python3.12")


def test_its_layers_are_no_files_here(tmp_path: Path) -> None:
    """As `nvllm build --layout` and `nvllm dockerfile --base-image` want them."""
    world = World(tmp_path)
    world.lock = replace(world.lock, base=base(f"nvidia/cuda@{DIGEST}"))
    with pytest.raises(Refused) as caught:
        world.builder(tmp_path / "cache").image()
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.found) == ("NV305", ".base.image", f"nvidia/cuda@{DIGEST}")
    assert found.expected == "a base whose layers are files here"
    assert found.cure.endswith("nvllm build demo --layers-only")
    assert not list((tmp_path / "cache").glob("*.tar"))


@pytest.mark.engine
def test_a_registry_that_has_not_got_it() -> None:
    with serving() as site:
        image = f"{site.url.removeprefix('http://')}/gone:1.0@{DIGEST}"
        with pytest.raises(Refused) as caught:
            registry_base.layers(base(image), "linux/amd64", engine.require(), Silent(), offline=False)
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.expected) == ("NV305", "docker engine", image)
    assert found.cure.startswith(f"docker pull --platform linux/amd64 {image.replace(':1.0', '')}")


@pytest.mark.engine
def test_nothing_is_pulled_offline() -> None:
    with serving() as site:
        image = f"{site.url.removeprefix('http://')}/base@{DIGEST}"
        with pytest.raises(Refused) as caught:
            registry_base.layers(base(image), "linux/amd64", engine.require(), Silent(), offline=True)
        assert site.record == []
    (found,) = caught.value.refusals
    assert (found.code, found.found) == ("NV305", "not in the engine, and --offline")
