"""Images through a registry: what a pull trusts, and what it refuses before the engine gets anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from nvllm.cli.main import main
from nvllm.core import canonical
from nvllm.core.paths import Places
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.fleet import images, registry
from nvllm.fleet.images import Pulled
from nvllm.image import buildrecord, identity, recording
from nvllm.image.builder import ImageBuilder
from nvllm.image.buildrecord import Proof
from nvllm.image.identity import Build
from nvllm.layers.oci import Image, sha256
from support import oci_registry
from support.buildable import IMAGE, Buildable
from support.oci_registry import NAME, Registry


@dataclass
class Loaded:
    """Stands in for an engine: keeps what it was asked to load."""

    images: list[tuple[Image, tuple[str, ...]]] = field(default_factory=list)

    def image(self, _reference: str) -> None:
        """It is asked for tags, and has none."""

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

    def pull(self, digest: str | None, proof: Proof | None = None) -> Pulled:
        engine = cast("Engine", self.engine)
        repository, project = self.kept.repository(), self.made.project
        return images.pull_image(repository, digest, self.build, project, self.other, engine, Silent(), proof=proof)

    def refused(self, digest: str | None) -> list[str]:
        with pytest.raises(Refused) as caught:
            self.pull(digest)
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
    world.record()
    done = world.pull(pushed.digest)
    ((loaded, tags),) = world.engine.images
    assert (loaded.config, loaded.manifest, loaded.diff_ids) == (
        world.image.config,
        world.image.manifest,
        world.image.diff_ids,
    )
    assert tags == world.build.tags
    assert buildrecord.read(world.other.builds, world.build.build_hash) == done.record
    assert [one.kind for one in done.record.layers] == [one.kind for one in world.image.layers]


def test_a_tag_alone_proves_nothing(world: World) -> None:
    pushed = images.push_image(world.image, images.tag_of(world.build), world.kept.repository())
    assert world.refused(None) == ["NV332"]
    world.record()
    assert world.pull(None).digest == pushed.digest
    assert world.engine.images[0][1] == world.build.tags


def test_another_image_under_the_tag_is_not_as_recorded(world: World) -> None:
    world.record()
    less = Image(*without_last_layer(world.image))
    images.push_image(less, images.tag_of(world.build), world.kept.repository())
    assert set(world.refused(None)) == {"NV308"}


def without_last_layer(image: Image) -> tuple[bytes, tuple[Any, ...]]:
    config = json.loads(image.config)
    config["rootfs"]["diff_ids"].pop()
    config["history"].pop()
    return canonical.encode(config), image.layers[:-1]


def test_an_image_of_another_build_is_refused_also_by_digest(world: World) -> None:
    config = world.image.config.replace(world.build.build_hash.encode(), b"0" * 64)
    pushed = images.push_image(Image(config, world.image.layers), "any", world.kept.repository())
    assert world.refused(pushed.digest) == ["NV332"]


def test_an_image_for_another_platform_is_refused(world: World) -> None:
    config = world.image.config.replace(b'"amd64"', b'"arm64"')
    pushed = images.push_image(Image(config, world.image.layers), "any", world.kept.repository())
    assert world.refused(pushed.digest) == ["NV332"]


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
    assert world.refused(sha256(data)) == ["NV332"]


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
    assert world.refused(pushed.digest) == ["NV332"]
    assert not list(world.other.cache.parent.rglob("outside*"))


def test_an_image_does_not_take_the_place_of_the_one_that_this_host_knows(world: World) -> None:
    """Neither knows of a task of another driver, and the first one stays."""
    own = images.push_image(world.image, "any", world.kept.repository())
    record = world.pull(own.digest, "driver").record
    world.engine.images.clear()
    less = images.push_image(Image(*without_last_layer(world.image)), "less", world.kept.repository())
    with pytest.raises(Refused) as caught:
        world.pull(less.digest, "driver")
    assert [one.code for one in caught.value.refusals] == ["NV332"]
    assert world.engine.images == []
    assert buildrecord.read(world.other.builds, world.build.build_hash) == record
    world.record()
    assert world.pull(own.digest).record == record  # it keeps what was known


@pytest.mark.parametrize("part", ["config", "layer"])
def test_a_flipped_bit_of_any_blob_is_refused(world: World, part: str) -> None:
    world.record()
    pushed = images.push_image(world.image, "any", world.kept.repository())
    digest = world.image.id if part == "config" else world.image.layers[0].diff_id
    data = bytearray(world.kept.blobs[digest])
    data[len(data) // 2] ^= 1
    world.kept.blobs[digest] = bytes(data)
    assert world.refused(pushed.digest) == ["NV205"]
    assert not world.other.builds.exists()


def test_a_blob_that_the_registry_lost(world: World) -> None:
    world.record()
    pushed = images.push_image(world.image, "any", world.kept.repository())
    del world.kept.blobs[world.image.layers[0].diff_id]
    assert world.refused(pushed.digest) == ["NV331"]


def test_what_would_travel(world: World) -> None:
    repository = world.kept.repository()
    before = images.lacking(world.image, repository)
    assert before == images.push_image(world.image, "any", repository).sent
    assert images.lacking(world.image, repository) == 0


def test_a_host_without_layers_and_files_pushes_what_the_registry_has(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.record()
    tag, made = images.tag_of(world.build), world.made
    monkeypatch.setenv("NVLLM_HOME", str(made.home))
    words = ["push", f"{world.kept.url.removeprefix('http://')}/{NAME}", IMAGE]
    push = ["--project", str(made.project.root), "--platform", "linux/amd64", *words]
    images.push_image(world.image, "other", world.kept.repository())
    shutil.rmtree(made.places.layers)
    shutil.rmtree(made.places.store)
    assert main([*push, "--dry-run"]) == 0
    assert tag not in world.kept.manifests
    assert main(push) == 0
    assert world.kept.manifests[tag] == world.image.manifest
    assert "  0 B of" in capsys.readouterr().out
    assert not made.places.layers.exists()


def test_only_the_recorded_image_of_the_build_counts_as_present(world: World) -> None:
    repository, recorded = world.kept.repository(), recording.of_image(world.build, world.image)
    assert images.present(world.build, recorded, repository) is None
    pushed = images.push_image(world.image, "any", repository)
    there = images.present(world.build, recorded, repository)
    assert there is not None
    assert images.tag_present(there, "tag", repository) == replace(pushed, tag="tag", sent=0)
    layer = world.kept.blobs.pop(world.image.layers[0].diff_id)
    assert images.present(world.build, recorded, repository) is None  # it has to be made, and sent
    world.kept.blobs[world.image.layers[0].diff_id] = layer
    assert images.present(world.build, None, repository) is None
    assert images.present(world.build, replace(recorded, manifest=None), repository) is None
    assert images.present(world.build, replace(recorded, build_hash="0" * 64), repository) is None
