"""Comparing images that an engine holds: small ones, which are saved by it, and the real one against another record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.core.progress import Silent
from nvllm.engine.engine import Engine
from nvllm.image import contents, difference
from nvllm.layers import oci, tarlayer
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Image
from support.engine_world import IMAGE, BuiltImage, World, Worlds

pytestmark = pytest.mark.engine


def small(place: Path, text: bytes) -> Image:
    """Return an image of two layers, the upper one with TEXT."""
    place.mkdir()
    layers = [
        tarlayer.write(kind, [tarlayer.blob(f"opt/{kind}", data)], epoch=1, path=place / kind, progress=Silent())
        for kind, data in (("base", b"the same"), ("top", text))
    ]
    return oci.assemble(
        layers,
        platform="linux/amd64",
        epoch=1,
        entrypoint=["/opt/top"],
        environment={"A": "b"},
        labels={"nvllm.image": "small"},
    )


@pytest.fixture
def tags(docker_client: DockerClient) -> Iterator[tuple[str, str]]:
    names = (f"nvllm:difference-{os.getpid()}-one", f"nvllm:difference-{os.getpid()}-other")
    yield names
    for name in names:
        docker_client.api.remove_image(name)


def test_two_small_images_are_saved_and_compared(
    tmp_path: Path, docker_client: DockerClient, tags: tuple[str, str]
) -> None:
    engine, cache = Engine(docker_client), LayerCache(tmp_path / "no cache")
    images = [small(tmp_path / name, f"{name:5}\n".encode()) for name in ("one", "other")]
    for image, tag in zip(images, tags, strict=True):
        engine.load(image, [tag], Silent())
    found = [contents.of_engine(tag, engine, cache, tmp_path) for tag in tags]
    (one,) = difference.images(found[0], found[1])
    assert (one.layer, one.path, one.attribute) == ("top", "opt/top", "content")
    assert one.lines == ("@@ -1 +1 @@", "-one  ", "+other")
    for image, held in zip(images, found, strict=True):
        made = contents.of_image("made", image)
        assert list(difference.images(made, held)) == []
        assert [layer.name for layer in held.layers] == ["base", "top"]
        assert [layer.tar().head(1 << 20) for layer in held.layers] == [one.path.read_bytes() for one in image.layers]


def test_an_image_that_is_there_is_held_against_a_record_that_came_later(
    worlds: Worlds, built_image: BuiltImage
) -> None:
    """As after `git pull`: the record is of the present build hash, and has another layer than this host built."""
    world: World = worlds.make()
    path = world.project.digests(IMAGE)
    there = world.nvllm("build", IMAGE, "--json").result
    assert there["outcome"] == "already there"
    if there["record"] != "as recorded":
        pytest.skip("nothing is recorded for this platform")
    digest = next(line for line in path.read_text().split('"diff_id": "')[3:]).partition('"')[0]
    path.write_text(path.read_text().replace(digest, f"sha256:{64 * '0'}"))
    done = world.nvllm("build", IMAGE, "--json")
    assert (done.code, {one["code"] for one in done.refusals}) == (3, {"NV308"})
    (refusal,) = done.refusals
    assert (refusal["expected"], refusal["found"]) == (f"sha256:{64 * '0'}", digest)
    assert built_image.build_hash[:12] in refusal["cure"]
    # The layer is made again, and is the same again: the record is what is wrong.
    path.write_text(path.read_text().replace(f"sha256:{64 * '0'}", digest))
    assert world.nvllm("build", IMAGE, "--json").result["record"] == "as recorded"
