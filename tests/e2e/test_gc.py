"""`nvllm gc` on a real engine: it removes exactly what nothing refers to, and nothing that others built."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import ImageNotFound

from nvllm.core.paths import places
from nvllm.gc import garbage
from nvllm.gc.garbage import References
from support import loop_disk
from support.engine_world import IMAGE, BuiltImage, World, Worlds

pytestmark = pytest.mark.engine

OLD = "request-shapes"
NOTHING = References(frozenset(), frozenset(), frozenset(), frozenset())


def images(client: DockerClient) -> set[tuple[str | None, str]]:
    return {(image.id, tag) for image in client.images.list("nvllm") for tag in image.tags}


def files(world: World) -> set[str]:
    """Everything in the cache and the records of WORLD; locks come and go."""
    below = [world.places.cache, world.places.builds]
    return {str(path) for top in below for path in top.rglob("*") if not path.name.endswith(".lock")}


@pytest.fixture
def untidy(worlds: Worlds, docker_client: DockerClient, built_image: BuiltImage) -> Iterator[tuple[World, str]]:
    """A world with an image that is not the spec's, its layers, and litter; and the tag of that image."""
    before = images(docker_client)
    world = worlds.make()
    tag = str(world.nvllm("build", IMAGE, "--patches", OLD, "--json").result["tag"])
    docker_client.api.tag(built_image.id, "nvllm", IMAGE)  # the newest is the spec's again
    try:
        yield world, tag
    finally:
        docker_client.api.tag(built_image.id, "nvllm", IMAGE)
        if tag not in {name for _, name in before}:
            try:
                docker_client.api.remove_image(tag)
            except ImageNotFound:
                assert tag.startswith(f"nvllm:{IMAGE}-")  # gone, as it should be


_TAKEN = """import json, os

def taken(top):
    inner = [os.path.join(place, name) for place, below, names in os.walk(top) for name in (*below, *names)]
    return sum(os.lstat(path).st_blocks * 512 for path in (top, *inner))

layers = "/engine/image/overlay2/layerdb/sha256"
print(json.dumps({
    name: taken(f"{layers}/{name}") + taken("/engine/overlay2/" + open(f"{layers}/{name}/cache-id").read())
    for name in os.listdir(layers)
}))
"""


def layers_on_disk(client: DockerClient, image: str) -> dict[str, int]:
    """Return the blocks that each layer of the engine takes, in bytes, as root in a container of IMAGE sees them."""
    engine = client.info()
    assert engine["Driver"] == "overlay2"
    mounts = {engine["DockerRootDir"]: {"bind": "/engine", "mode": "ro"}}
    said = client.containers.run(
        image,
        ["-c", _TAKEN],
        entrypoint="/opt/venv/bin/python3",
        user="0",
        volumes=mounts,
        network_mode="none",
        remove=True,
    )
    found = json.loads(said)
    assert isinstance(found, dict)
    return found


def blocks(directory: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*"))


def test_the_figure_is_what_the_disk_gets_back(
    untidy: tuple[World, str], docker_client: DockerClient, built_image: BuiltImage
) -> None:
    """Three images of 2.7 GB each that share all but their patched files with the one that stays."""
    world, tag = untidy
    tags = {tag}
    try:
        for patches in (f"{OLD},aot-load-guard", f"{OLD},aot-load-guard,eager-logprobs"):
            tags.add(str(world.nvllm("build", IMAGE, "--patches", patches, "--json").result["tag"]))
        docker_client.api.tag(built_image.id, "nvllm", IMAGE)
        before, files_before = layers_on_disk(docker_client, built_image.tag), blocks(world.directory)
        planned = world.nvllm("gc", "--dry-run", "--keep-younger", "0", "--json").result
        done = world.nvllm("gc", "--keep-younger", "0", "--json").result
        after, files_after = layers_on_disk(docker_client, built_image.tag), blocks(world.directory)
    finally:
        for left in tags & {name for _, name in images(docker_client)}:
            docker_client.api.remove_image(left)
    assert tags <= {name for piece in done["pieces"] for name in piece["name"].split()}
    freed = sum(before[layer] for layer in before.keys() - after.keys()) + files_before - files_after
    assert done["bytes"] == planned["bytes"]
    assert 0.9 * freed < done["bytes"] < 1.1 * freed, (done["bytes"], freed)


@pytest.mark.long  # it needs root
def test_the_figure_of_files_is_what_df_gets_back(tmp_path: Path) -> None:
    """On a disk of its own, so that nobody else's work is in the figure of df."""
    with loop_disk.mounted(tmp_path / "disk", 256) as disk:
        where = places({"NVLLM_HOME": str(disk / "home")})
        for number in range(3):
            _write(where.store / f"sha256/0{number}" / f"0{number}".ljust(64, "0"), 5_000_000 + number)
            _write(where.layers / f"layer{number}.tar", 9_000_001)
            os.link(where.layers / f"layer{number}.tar", where.store / "sha256/00" / f"1{number}".ljust(64, "0"))
        for number in range(2000):  # a directory takes blocks too, and a small file a whole one
            _write(where.layers / f"a.tree/usr/lib/{number % 50}/{number}", 1 + 7 * number)
        _write(where.runs / "nvllm-cpu-ended/engine.log", 3_000_000)
        listed = list(garbage.files(where, NOTHING, (), time.time() + 1))
        before = loop_disk.free(disk)
        for piece in listed:
            garbage.remove(piece, where)
        freed, counted = loop_disk.free(disk) - before, sum(piece.size for piece in listed)
        assert {piece.kind for piece in listed} == {"locked file", "layer", "base tree", "run directory"}
        assert 0.9 * freed < counted < 1.1 * freed, (counted, freed)


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))


def test_a_dry_run_lists_and_removes_nothing(untidy: tuple[World, str], docker_client: DockerClient) -> None:
    world, tag = untidy
    before, there = images(docker_client), files(world)
    done = world.nvllm("gc", "--dry-run", "--keep-younger", "0", "--json")
    assert done.result["removed"] is False
    found = {(piece["kind"], piece["name"]) for piece in done.result["pieces"]}
    assert ("image", tag) in found
    assert done.result["bytes"] == sum(piece["bytes"] for piece in done.result["pieces"]) > 0
    assert (images(docker_client), files(world)) == (before, there)


def test_what_is_young_stays(untidy: tuple[World, str], docker_client: DockerClient) -> None:
    world, _ = untidy
    before, there = images(docker_client), files(world)
    assert world.nvllm("gc", "--json").result["pieces"] == []
    assert (images(docker_client), files(world)) == (before, there)


def test_exactly_what_is_unreferenced_goes(
    untidy: tuple[World, str], docker_client: DockerClient, built_image: BuiltImage
) -> None:
    world, tag = untidy
    before = images(docker_client)
    (litter := world.places.store / "partial" / ("0" * 64)).parent.mkdir()
    litter.write_bytes(b"half a download")
    foreign = world.places.store / "sha256" / "00" / ("0" * 64)
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_bytes(b"of no lock")
    ended = world.places.runs / "nvllm-cpu-ended"
    ended.mkdir(parents=True)
    listed = world.nvllm("gc", "--dry-run", "--keep-younger", "0", "--json").result["pieces"]
    own = [piece for piece in listed if piece["kind"] in {"image", "locked file", "partial download", "record"}]
    assert [(one["kind"], one["name"]) for one in own if one["name"] == tag or one["name"] == "0" * 64] == [
        ("image", tag),
        ("locked file", "0" * 64),
        ("partial download", "0" * 64),
    ]
    assert len([one for one in own if one["kind"] == "record"]) == 1

    done = world.nvllm("gc", "--keep-younger", "0", "--json")
    assert done.result["removed"] is True
    assert done.result["pieces"] == listed
    assert images(docker_client) == {one for one in before if one[1] != tag}
    assert not any(path.exists() for path in (litter, foreign, ended))
    # The present image is as it was: it is there, known, and every locked file as well.
    assert world.nvllm("build", IMAGE, "--json").result["outcome"] == "already there"
    assert world.serve("--dry-run").result["image_id"] == built_image.id
    assert world.nvllm("gc", "--dry-run", "--keep-younger", "0").out == "nothing to remove\n"
    # And it can be made anew from what stayed, without a network.
    layout = world.directory / "layout"
    again = world.nvllm("--offline", "build", IMAGE, "--layout", str(layout), "--json")
    assert again.result["image_id"] == built_image.id
    shutil.rmtree(layout)


def test_an_image_that_is_not_on_record_here_is_somebody_elses(
    untidy: tuple[World, str], docker_client: DockerClient
) -> None:
    world, tag = untidy
    (mine,) = [path for path in world.places.builds.glob("*.json") if path.stem[:12] == tag.rpartition("-")[2]]
    mine.unlink()
    before = images(docker_client)
    pieces = world.nvllm("gc", "--keep-younger", "0", "--json").result["pieces"]
    assert not any(piece["kind"] == "image" for piece in pieces)
    assert images(docker_client) == before
