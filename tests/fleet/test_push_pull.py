"""Image `cpu` and its blessing through a real registry: from one engine, to another one that never built them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache.blessings import Blessings
from support import private_engines
from support.buildable import IMAGE as SMALL
from support.buildable import Buildable
from support.engine_world import IMAGE, ROOT, Done, World, Worlds, own_nvllm, run, until
from support.private_engines import KINDS, PrivateEngine
from support.real_registry import Offered, RealRegistry, mounted

pytestmark = pytest.mark.fleet

HOST_ENGINE = next(kind for kind in KINDS if kind.suite is None)


# A small image, whose engine is of no matter


@pytest.fixture
def small(tmp_path: Path) -> Buildable:
    return Buildable(tmp_path / "small")


def test_a_push_that_is_killed_goes_on_where_it_was(real: RealRegistry) -> None:
    """The whole image `cpu`, and kill -9 in its middle."""
    pushing = subprocess.Popen(
        own_nvllm_argv("push", real.name, IMAGE), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: real.stored() > 300_000_000 or pushing.poll() is not None, "a part is there", 300)
    pushing.send_signal(signal.SIGKILL)
    assert pushing.wait() == -signal.SIGKILL
    assert real.tags() == []
    whole = own_nvllm("push", real.name, IMAGE, "--json").result
    assert whole["bytes"] > 0
    assert own_nvllm("push", real.name, IMAGE, "--json").result["bytes"] == 0
    assert real.tags() == [whole["tag"]]
    raw = run(["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{real.name}:{whole['tag']}"], {})
    assert "sha256:" + hashlib.sha256(raw.out.encode()).hexdigest() == whole["manifest"]
    recorded = json.loads(Path(ROOT, f"manifests/{IMAGE}.digests.json").read_text())
    assert whole["manifest"] in {one.get("manifest") for one in recorded["platforms"].values()}


def own_nvllm_argv(*args: str) -> list[str]:
    return [*own_nvllm("--version").argv[:-1], *args]


def test_a_registry_that_is_killed_in_the_middle_of_a_push(real: RealRegistry) -> None:
    pushing = subprocess.Popen(
        own_nvllm_argv("push", real.name, IMAGE, "--json"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    until(lambda: real.stored() > 300_000_000, "a part is there", 300)
    real.kill()
    time.sleep(1)
    real.start()
    out, _ = pushing.communicate(timeout=600)
    assert pushing.returncode == 0, out
    assert real.tags() == [json.loads(out)["result"]["tag"]]


def test_a_registry_that_is_killed_in_the_middle_of_a_pull(offered: Offered, tmp_path: Path) -> None:
    """What came stays in the store, and only the rest comes then."""
    real, pushed = RealRegistry(offered.directory), offered.pushed
    real.start()
    argv = own_nvllm_argv("pull", f"{real.name}@{pushed['manifest']}", IMAGE, "--json")
    env, partial = {**os.environ, "NVLLM_HOME": str(tmp_path / "home")}, tmp_path / "home/cache/store/partial"
    pulling = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    until(lambda: sum(one.stat().st_size for one in partial.glob("*")) > 300_000_000, "a part is there", 300)
    real.kill()
    out, _ = pulling.communicate(timeout=300)
    assert {one["code"] for one in json.loads(out)["refusals"]} == {"NV331"}
    there = sum(one.stat().st_size for one in partial.glob("*"))
    assert there > 300_000_000
    real.start()
    try:
        assert run(argv, env).result["manifest"] == pushed["manifest"]
        assert list(partial.glob("*")) == []
    finally:
        real.kill()


def test_a_read_only_registry_says_so(real: RealRegistry, small: Buildable, capsys: pytest.CaptureFixture[str]) -> None:
    real.kill()
    real.read_only = True
    real.start()
    status, document = online(small, capsys, "push", real.name, SMALL)
    assert (status, [one["code"] for one in document["refusals"]]) == (1, ["NV331"])
    assert "status 405" in document["refusals"][0]["found"]


def test_a_registry_on_a_full_disk_says_so_and_has_nothing_half(
    tmp_path: Path, small: Buildable, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its storage is a tmpfs with room for less than the image. When there is room, the same push goes through."""
    directory = tmp_path / "registry"
    (directory / "data").mkdir(parents=True)
    full = RealRegistry(directory, mounted("-t tmpfs -o size=64k tmpfs", directory / "data"))
    full.start()
    try:
        status, document = online(small, capsys, "push", full.name, SMALL)
        assert (status, {one["code"] for one in document["refusals"]}) == (1, {"NV331"})
        assert all("status 500" in one["found"] for one in document["refusals"])
        assert full.tags() == []
        full.enlarge("64m")
        pushed = online(small, capsys, "push", full.name, SMALL)[1]["result"]
        assert full.tags() == [pushed["tag"]]
        assert online(small, capsys, "push", full.name, SMALL)[1]["result"]["bytes"] == 0
    finally:
        full.kill()


def test_a_repository_that_cannot_be_written_says_so(
    tmp_path: Path, small: Buildable, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its storage is mounted read-only. What was pushed before is still there, and nothing is added."""
    data = tmp_path / "registry/data"
    data.mkdir(parents=True)
    frozen = RealRegistry(data.parent, mounted(f"--bind -o ro {data}", data))
    frozen.start()
    try:
        status, document = online(small, capsys, "push", frozen.name, SMALL)
        assert (status, {one["code"] for one in document["refusals"]}) == (1, {"NV331"})
        assert all("status 500" in one["found"] for one in document["refusals"])
        assert list(data.rglob("*")) == []
    finally:
        frozen.kill()


def online(small: Buildable, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Run nvllm on SMALL as `Buildable.nvllm` does, but with the network."""
    arguments = [one for one in small.arguments() if one != "--offline"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "arguments", lambda *more: [*arguments, *more])
        return small.nvllm(capsys, *words)


# Another engine


@pytest.fixture
def elsewhere_engine() -> Iterator[PrivateEngine]:
    with private_engines.engine(HOST_ENGINE) as held:
        yield held


def test_blessed_here_served_blessed_there(
    real: RealRegistry, elsewhere_engine: PrivateEngine, worlds: Worlds, tmp_path: Path
) -> None:
    world = worlds.make()
    profile = world.profile("blessed")
    there = tmp_path / "there"
    shutil.copytree(world.project.root, there)
    assert world.nvllm("bless", IMAGE, "--profile", profile, "--json").result["unsafe"] is False
    pushed = world.nvllm("push", real.name, IMAGE, "--blessing", profile, "--json").result
    (blessed,) = pushed["blessings"]

    other = Elsewhere(elsewhere_engine, there, world)
    moved = other.registry(real)
    reference = f"{moved.name}@{pushed['manifest']}"
    try:
        damage = flip(moved, blessed["manifest"])
        assert other.nvllm("pull", reference, IMAGE, "--blessing", profile).codes == ["NV205"]
        assert not list((there / "manifests/blessed").glob("*.json"))
        damage()
        pulled = other.nvllm("pull", reference, IMAGE, "--blessing", profile).result
        assert pulled["image_id"] == own_nvllm("build", IMAGE, "--json").result["image_id"]
        assert [one["serve_hash"] for one in pulled["blessings"]] == [serve_hash(world)]
        assert set(other.nvllm("serve", IMAGE, "--profile", profile, "--detach").codes) == {"NV901"}
        candidate = pulled["blessings"][0]["candidate"]
        tried = other.nvllm("bless", IMAGE, "--profile", profile, "--candidate", candidate).result
        assert (tried["version"], tried["tree_hash"]) == (1, candidate)
        ready = other.nvllm("serve", IMAGE, "--profile", profile, "--detach")
        assert ready.code == 0, ready
        other.nvllm("stop", world.instance("blessed"))
        tree = next((elsewhere_engine.home / "cache/trees").glob("?" * 64))
        victim = next(path for path in tree.rglob("model") if path.is_file())
        victim.chmod(0o644)
        victim.write_bytes(victim.read_bytes()[:-1] + b"!")
        assert set(other.nvllm("serve", IMAGE, "--profile", profile, "--detach").codes) == {"NV907"}
    finally:
        moved.kill()


def serve_hash(world: World) -> str:
    (one,) = Blessings.of_project(world.project, world.places).all()
    assert one.manifest is not None
    return one.manifest.serve_hash


def flip(registry: RealRegistry, manifest: str) -> Any:
    """Flip a bit in the layer of MANIFEST in the storage of REGISTRY; return what flips it back."""
    layer = registry.blob(json.loads(registry.blob(manifest).read_bytes())["layers"][0]["digest"])
    good = layer.read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    layer.write_bytes(bytes(bad))
    return lambda: layer.write_bytes(good)


class Elsewhere:
    """The project THERE on the host of ENGINE, which has the models of WORLD and no image."""

    def __init__(self, engine: PrivateEngine, there: Path, world: World) -> None:
        self._engine = engine
        self._there = there
        (engine.home / "cache").mkdir(parents=True, exist_ok=True)
        (engine.home / "cache/models").symlink_to(world.places.models)

    def registry(self, source: RealRegistry) -> RealRegistry:
        """Return the registry SOURCE, with its storage, in the network of this engine."""
        source.kill()
        moved = RealRegistry(source.directory, self._engine.spaces.argv)
        moved.start()
        return moved

    def nvllm(self, *args: str) -> Done:
        return self._engine.on_project(self._there, *args)
