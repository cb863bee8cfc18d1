"""NV307, base is another image: the engine holds the digest for another platform."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from docker import DockerClient

from nvllm.core.lock import LockedRegistryBase
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine import engine
from nvllm.engine.engine import Engine
from nvllm.host.facts import ImageFacts
from nvllm.image import registry_base
from support import registry
from support.loopback import serving

BASE = LockedRegistryBase("registry", "3.12", f"example.test/base@sha256:{64 * 'a'}", "/usr/local/bin/python3.12")
HELD = ImageFacts("sha256:1", ("sha256:2",), (), 1, "linux/amd64", (f"example.test/base@sha256:{64 * 'a'}",))


class Holding(Engine):
    """An engine that holds one image. A real one looks a digest up by the digests that it lists, and cannot lie so."""

    def __init__(self, held: ImageFacts) -> None:
        self.held = held

    def image(self, reference: str) -> ImageFacts | None:
        return self.held


@pytest.mark.engine
def test_a_base_that_was_pulled_for_another_platform(docker_client: DockerClient) -> None:
    files = {"linux/amd64": {"marker": b"amd64"}, "linux/arm64": {"marker": b"arm64"}}
    with serving() as site:
        image = registry.publish(site, f"base-{uuid.uuid4().hex[:8]}", files)
        held = engine.require()
        try:
            assert held.pull(image, "linux/arm64", Silent()) == ""
            with pytest.raises(Refused) as refused:
                registry_base.layers(replace(BASE, image=image), "linux/amd64", held, Silent(), offline=False)
        finally:
            docker_client.images.remove(image, force=True)
    (found,) = refused.value.refusals
    assert (found.code, found.expected, found.found) == ("NV307", "an image for linux/amd64", "linux/arm64")
    assert found.cure == f"docker rmi {image} && docker pull --platform linux/amd64 {image}"


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (replace(HELD, platform="linux/arm64"), "linux/arm64"),
        (replace(HELD, digests=()), "no digest"),
        (replace(HELD, digests=(f"example.test/base@sha256:{64 * 'b'}",)), f"example.test/base@sha256:{64 * 'b'}"),
    ],
)
def test_what_is_held_is_compared(held: ImageFacts, said: str) -> None:
    with pytest.raises(Refused) as refused:
        registry_base.layers(BASE, "linux/amd64", Holding(held), Silent(), offline=True)
    (found,) = refused.value.refusals
    assert (found.code, found.found) == ("NV307", said)
