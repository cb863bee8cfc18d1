"""Images through a registry: what a pull trusts, and what it refuses before the engine gets anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from nvllm.core import canonical
from nvllm.core.paths import Places
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.fleet import images, registry
from nvllm.fleet.images import Pulled
from nvllm.image import buildrecord, identity, recording
from nvllm.image.builder import ImageBuilder
from nvllm.image.identity import Build
from nvllm.layers.oci import Image, sha256
from support import oci_registry
from support.buildable import IMAGE, Buildable
from support.oci_registry import Registry


@dataclass
class Loaded:
    """Stands in for an engine: keeps what it was asked to load."""

    images: list[tuple[Image, tuple[str, ...]]] = field(default_factory=list)

    def load(self, wanted: Image, tags: Sequence[str], _progress: Progress) -> None:
        for layer in wanted.layers:
            assert "sha256:" + canonical.sha256_file(layer.path) == layer.diff_id
        self.images.append((wanted, tuple(tags)))


@dataclass
class World:
    """A project, its image, a registry, and another host with the same project."""

    made: Buildable
    build: Build
    image: Image
    kept: Registry
    other: Places
    engine: Loaded

    def pull(self, digest: str | None, build: Build | None) -> Pulled:
        engine = cast("Engine", self.engine)
        repository, progress = self.kept.repository(), Silent()
        return images.pull_image(repository, digest, build, self.made.project, self.other, engine, progress)

    def refused(self, digest: str | None, build: Build | None) -> list[str]:
        with pytest.raises(Refused) as caught:
            self.pull(digest, build)
        assert self.engine.images == []
        return [one.code for one in caught.value.refusals]

    def record(self) -> None:
        """Record the digests of the image in the project."""
        built = recording.of_image(self.build, self.image)
        recording.record(self.made.project, IMAGE, built, self.image.layers)


@pytest.fixture
def world(tmp_path: Path, buildable: Buildable, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(registry, "BACKOFF", 0.001)
    made = buildable
    build, _ = identity.load_build(made.project, IMAGE, None)
    image = ImageBuilder(made.project, made.places, Silent(), offline=True).image(build)
    other = Places(tmp_path / "other/cache", tmp_path / "other/state")
    with oci_registry.running() as kept:
        yield World(made, build, image, kept, other, Loaded())


def test_an_image_comes_back_by_its_digest_whole(world: World) -> None:
    pushed = images.push_image(world.image, images.tag_of(world.build), world.kept.repository())
    assert pushed.sent == sum(layer.size for layer in world.image.layers) + len(world.image.config)
    assert images.push_image(world.image, pushed.tag, world.kept.repository()).sent == 0
    assert world.kept.manifests[pushed.tag] == world.image.manifest
    done = world.pull(pushed.digest, None)
    ((loaded, tags),) = world.engine.images
    assert (loaded.config, loaded.manifest, loaded.diff_ids) == (
        world.image.config,
        world.image.manifest,
        world.image.diff_ids,
    )
    assert tags == (world.build.tags[0],)
    assert buildrecord.read(world.other.builds, world.build.build_hash) == done.record
    assert [one.kind for one in done.record.layers] == [one.kind for one in world.image.layers]


def test_a_tag_alone_proves_nothing(world: World) -> None:
    pushed = images.push_image(world.image, images.tag_of(world.build), world.kept.repository())
    assert world.refused(None, world.build) == ["NV332"]
    world.record()
    assert world.pull(None, world.build).digest == pushed.digest
    assert world.engine.images[0][1] == world.build.tags


def test_another_image_under_the_tag_is_not_as_recorded(world: World) -> None:
    world.record()
    less = Image(*without_last_layer(world.image))
    images.push_image(less, images.tag_of(world.build), world.kept.repository())
    assert set(world.refused(None, world.build)) == {"NV308"}


def without_last_layer(image: Image) -> tuple[bytes, tuple[Any, ...]]:
    config = json.loads(image.config)
    config["rootfs"]["diff_ids"].pop()
    config["history"].pop()
    return canonical.encode(config), image.layers[:-1]


def test_an_image_of_another_build_is_refused_also_by_digest(world: World) -> None:
    config = world.image.config.replace(world.build.build_hash.encode(), b"0" * 64)
    pushed = images.push_image(Image(config, world.image.layers), "any", world.kept.repository())
    assert world.refused(pushed.digest, world.build) == ["NV332"]


def test_an_image_for_another_platform_is_refused(world: World) -> None:
    config = world.image.config.replace(b'"amd64"', b'"arm64"')
    pushed = images.push_image(Image(config, world.image.layers), "any", world.kept.repository())
    assert world.refused(pushed.digest, None) == ["NV332"]


def compressed(document: dict[str, Any]) -> None:
    document["layers"][0]["mediaType"] += "+gzip"


def another_order(document: dict[str, Any]) -> None:
    document["layers"].reverse()


def no_layers(document: dict[str, Any]) -> None:
    del document["layers"]


def no_digest(document: dict[str, Any]) -> None:
    document["config"]["digest"] = "sha256:1"


def an_extra_field(document: dict[str, Any]) -> None:
    document["annotations"] = {"a": "b"}


@pytest.mark.parametrize("change", [compressed, another_order, no_layers, no_digest, an_extra_field])
def test_manifests_that_nvllm_does_not_write(world: World, change: Callable[[dict[str, Any]], None]) -> None:
    images.push_image(world.image, "any", world.kept.repository())
    assert world.image.manifest is not None
    document = json.loads(world.image.manifest)
    change(document)
    data = canonical.encode(document)
    world.kept.repository().push_manifest("any", data)
    assert world.refused(sha256(data), None) == ["NV332"]


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("nvllm.build-hash", "../../outside"),
        ("nvllm.build-hash", "A" * 64),
        ("nvllm.image", "../demo"),
        ("nvllm.image", "demo:latest"),
    ],
)
def test_labels_of_which_no_path_and_no_tag_may_be_made(world: World, label: str, value: str) -> None:
    config = json.loads(world.image.config)
    config["config"]["Labels"][label] = value
    pushed = images.push_image(Image(canonical.encode(config), world.image.layers), "any", world.kept.repository())
    assert world.refused(pushed.digest, None) == ["NV332"]
    assert not list(world.other.cache.parent.rglob("outside*"))


def test_an_image_does_not_take_the_place_of_the_one_that_was_built_here(world: World) -> None:
    """Its label says the build hash, and whoever writes it may say any."""
    own = images.push_image(world.image, "any", world.kept.repository())
    record = world.pull(own.digest, None).record
    world.engine.images.clear()
    less = images.push_image(Image(*without_last_layer(world.image)), "less", world.kept.repository())
    assert world.refused(less.digest, None) == ["NV332"]
    assert buildrecord.read(world.other.builds, world.build.build_hash) == record
    assert world.pull(own.digest, None).record == record


@pytest.mark.parametrize("part", ["config", "layer"])
def test_a_flipped_bit_of_any_blob_is_refused(world: World, part: str) -> None:
    pushed = images.push_image(world.image, "any", world.kept.repository())
    digest = world.image.id if part == "config" else world.image.layers[0].diff_id
    data = bytearray(world.kept.blobs[digest])
    data[len(data) // 2] ^= 1
    world.kept.blobs[digest] = bytes(data)
    assert world.refused(pushed.digest, None) == ["NV205"]
    assert not world.other.builds.exists()


def test_a_blob_that_the_registry_lost(world: World) -> None:
    pushed = images.push_image(world.image, "any", world.kept.repository())
    del world.kept.blobs[world.image.layers[0].diff_id]
    assert world.refused(pushed.digest, None) == ["NV331"]


def test_what_would_travel(world: World) -> None:
    repository = world.kept.repository()
    before = images.lacking(world.image, repository)
    assert before == images.push_image(world.image, "any", repository).sent
    assert images.lacking(world.image, repository) == 0
