"""Building for real: the same bytes everywhere, nothing twice, and a toggled patch for kilobytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from platform import machine
from typing import Any

import pytest
from docker import DockerClient

from nvllm.core.paths import AMD64, Project, host_platform, places
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record
from nvllm.lock import lockdoc
from nvllm.patches import seriesfile
from support.engine_world import IMAGE, ROOT, BuiltImage, World, Worlds, another_user, own_nvllm, run

pytestmark = pytest.mark.engine

SERIES = "v0.32.0"
SOON = 2.0
"""Seconds in which an image that is already there must be answered for; `make bench` prints the figure itself."""


def recorded(world: World, build_hash: str) -> Record:
    found = buildrecord.read(world.places.builds, build_hash)
    assert found is not None
    return found


def test_an_image_that_is_there_is_not_built_again(built_image: BuiltImage) -> None:
    again = [own_nvllm("build", IMAGE, "--json") for _ in range(3)]
    for done in again:
        assert done.result["outcome"] == "already there"
        assert (done.result["image_id"], done.result["tag"]) == (built_image.id, built_image.tag)
    assert min(done.seconds for done in again) < SOON


@pytest.mark.skipif(host_platform(machine()) != AMD64, reason="no build for this platform was recorded")
def test_the_image_has_the_recorded_bytes(built_image: BuiltImage) -> None:
    """Each machine that runs this is a witness of manifests/cpu.digests.json."""
    done = own_nvllm("build", IMAGE, "--json")
    assert done.result["record"] == "as recorded", done
    assert done.result["image_id"] == built_image.id


def test_the_tags_name_the_image(built_image: BuiltImage, docker_client: DockerClient) -> None:
    assert built_image.tag == f"nvllm:{IMAGE}-{built_image.build_hash[:12]}"
    for tag in (built_image.tag, f"nvllm:{IMAGE}"):
        assert docker_client.images.get(tag).id == built_image.id


# One patch set or another


@pytest.fixture(scope="module")
def base(session_worlds: Worlds, built_image: BuiltImage) -> Record:
    """The record of the image as the spec has it."""
    return recorded(session_worlds.make(), built_image.build_hash)


@pytest.fixture
def toggling(worlds: Worlds, docker_client: DockerClient, built_image: BuiltImage) -> Iterator[World]:
    """A world in which other patch sets are built; what it brought into the engine goes again."""
    before = {tag for image in docker_client.images.list("nvllm") for tag in image.tags}
    world = worlds.make()
    try:
        yield world
    finally:
        docker_client.api.tag(built_image.id, "nvllm", IMAGE)
        mine = {tag for one in buildrecord.records(world.places.builds) for tag in one.tags or ()}
        for tag in mine - before:
            docker_client.api.remove_image(tag)


@pytest.mark.parametrize("off", ["aot-load-guard", "page-zeroer", "grammar-refusal", "sentinels"])
def test_toggling_a_patch_makes_the_layers_of_its_files(
    toggling: World, docker_client: DockerClient, built_image: BuiltImage, base: Record, off: str
) -> None:
    kept = [patch for patch in built_image.patches if patch != off]
    done = toggling.nvllm("build", IMAGE, "--patches", ",".join(kept), "--json")
    assert (done.result["outcome"], done.result["patches"]) == ("built", kept)
    found = recorded(toggling, done.result["build_hash"])
    series = seriesfile.load(toggling.project.series(SERIES), SERIES)
    (touched,) = [patch.touches for patch in series.patches if patch.id == off]
    for one, other in ((found, base), (base, found)):  # off, and on again
        new = [layer for layer in one.layers if layer not in other.layers]
        assert {layer.kind for layer in new} <= {"record", "identity", *(f"patches {path}" for path in touched)}
        assert sum(layer.size for layer in new) <= 1_000_000
    assert {f"patches {path}" for path in touched} <= {layer.kind for layer in base.layers if layer not in found.layers}
    image = docker_client.images.get(done.result["tag"])
    assert image.id == done.result["image_id"] == found.image_id
    assert image.attrs["RootFS"]["Layers"] == [layer.diff_id for layer in found.layers]
    assert done.seconds < 60


def test_no_patch_at_all(toggling: World, docker_client: DockerClient, built_image: BuiltImage, base: Record) -> None:
    done = toggling.nvllm("build", IMAGE, "--patches", "none", "--json")
    found = recorded(toggling, done.result["build_hash"])
    assert [layer.kind for layer in found.layers] == ["base", "wheels", "identity"]
    assert found.layers[:2] == base.layers[:2]
    told = toggling.nvllm("explain", IMAGE, done.result["tag"], "--json").result
    assert [one["path"] for one in told["factors"]] == [f".patches.{patch}" for patch in sorted(built_image.patches)]
    # The wheel's own files show through, as they are at the commit.
    file = "/opt/venv/lib/python3.11/site-packages/vllm/compilation/decorators.py"
    assert _holds(docker_client, found.image_id, "isinstance(compiled_fn, VllmSerializableFunction)", file) is False
    assert _holds(docker_client, built_image.id, "isinstance(compiled_fn, VllmSerializableFunction)", file) is True


def _holds(client: DockerClient, image: str, text: str, file: str) -> bool:
    """Return whether FILE of IMAGE holds TEXT, asked of a container without a network."""
    program = "import sys; print(sys.argv[1] in open(sys.argv[2]).read())"
    command = ["-I", "-c", program, text, file]
    said = client.containers.run(image, command, entrypoint=["/opt/venv/bin/python"], remove=True, network_mode="none")
    return {"True": True, "False": False}[said.decode().strip()]


def test_two_images_of_the_engine_differ_by_their_patches(
    toggling: World, built_image: BuiltImage, base: Record
) -> None:
    """The layers that differ are read from the cache, or saved by the engine where that has lost them."""
    off = "page-zeroer"
    kept = ",".join(patch for patch in built_image.patches if patch != off)
    done = toggling.nvllm("build", IMAGE, "--patches", kept, "--json")
    assert done.result["record"] == "not recorded for this build hash"
    compared = toggling.nvllm("image", "diff", built_image.tag, done.result["tag"], "--json")
    assert compared.code == 3, compared
    found = compared.document["result"]["differences"]
    layers = {one["layer"] for one in found}
    assert {one.kind for one in base.layers} & layers == layers - {"configuration"}
    assert {"base", "wheels"}.isdisjoint(layers)
    (config,) = [one for one in found if one["layer"] == "configuration" and "build-hash" in one["path"]]
    assert (config["a"], config["b"]) == (built_image.build_hash, done.result["build_hash"])
    identity = next(one for one in found if one["layer"] == "identity" and one["attribute"] == "content")
    assert identity["path"] == "opt/nvllm/identity.json"
    assert identity["lines"]


# The same bytes


def _share(build: str, target: Path) -> None:
    """Put the locked files of the image BUILD into a store at TARGET, as links where the file system allows."""
    own = places(dict(os.environ)).store
    project = Project(ROOT)
    lock = lockdoc.read(project.lock(build), project.show(project.lock(build)))
    for sha in {file.sha256 for file in lock.files}:
        place = target / "sha256" / sha[:2] / sha
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(own / "sha256" / sha[:2] / sha, place)
        except OSError:
            shutil.copy(own / "sha256" / sha[:2] / sha, place)


@pytest.mark.long  # `make test` holds a build against the record, and Nix builds it again in a sandbox
def test_two_builds_give_the_same_bytes(built_image: BuiltImage, base: Record, elsewhere: Path) -> None:
    """Everything is made again, elsewhere: no layer cache, another user, directory, umask, time zone and locale."""
    argv, env, user = another_user()
    home = elsewhere / "another home"
    for part in ("images", "manifests", "patches"):
        shutil.copytree(ROOT / part, elsewhere / "project" / part)
    _share(IMAGE, home / "cache/nvllm/store")
    for path in (home, *home.rglob("*")):
        if path.is_dir():
            os.chown(path, user, user if user != os.geteuid() else -1)
    env = {
        **env,
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "TMPDIR": str(home),
        "TZ": "Pacific/Chatham",
        "LC_ALL": "C",
        "LANG": "de_DE.UTF-8",
        "PYTHONHASHSEED": "4711",
        "SOURCE_DATE_EPOCH": "1",
    }
    options: dict[str, Any] = {"cwd": home, "umask": 0o077}
    if user != os.geteuid():
        options.update(user=user, group=user, extra_groups=[])
    layout = home / "layout"
    asked = ["--project", str(elsewhere / "project"), "--offline", "build", IMAGE, "--layout", str(layout), "--json"]
    done = run([*argv, *asked], env, **options)
    assert done.result["image_id"] == built_image.id, done
    assert done.result["build_hash"] == built_image.build_hash
    assert layout.stat().st_uid == user
    if host_platform(machine()) == AMD64:
        assert done.result["record"] == "as recorded"
    # What the engine holds and what the other user made, by our own comparison: nothing has to be read for it.
    compared = own_nvllm("image", "diff", built_image.tag, str(layout), "--json")
    assert compared.code == 0, compared
    assert compared.result["same"]

    def blob(digest: str) -> dict[str, Any]:
        found = json.loads((layout / "blobs" / digest.replace(":", "/")).read_bytes())
        assert isinstance(found, dict)
        return found

    (entry,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = blob(entry["digest"])
    assert manifest["config"]["digest"] == built_image.id
    assert [layer["digest"] for layer in manifest["layers"]] == [layer.diff_id for layer in base.layers]
    # The digests are those of the bytes, by a program that is not ours.
    names = [str(layout / "blobs" / layer.diff_id.replace(":", "/")) for layer in base.layers]
    sums = subprocess.run(["sha256sum", *names], capture_output=True, text=True, check=True).stdout.splitlines()
    assert ["sha256:" + line.split()[0] for line in sums] == [layer.diff_id for layer in base.layers]
