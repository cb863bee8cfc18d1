"""A cache from elsewhere that nobody signed, on the real engine: not served, then tried, then served."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.manifest import Manifest
from nvllm.cache.store import TreeStore
from nvllm.core.progress import Silent
from nvllm.fleet import blessings as fleet_blessings
from nvllm.fleet.registry import Repository
from support import oci_registry
from support.engine_world import IMAGE, World, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]


def altered(world: World, scratch: Path, repository: Repository) -> Manifest:
    """Push the blessing of WORLD with another byte in a library and every hash computed again; return its manifest."""
    (blessing,) = Blessings.of_project(world.project, world.places).all()
    blessed = blessing.manifest
    assert blessed is not None
    store = TreeStore(world.places.trees)
    shutil.copytree(store.path(blessed.tree_hash), scratch / "cache")
    library = next((scratch / "cache").rglob("*.so"))
    library.chmod(0o755)
    library.write_bytes(library.read_bytes() + b"!")
    tree = store.adopt(scratch / "cache", "cure", written=blessed.tree.written)
    assert tree.hash != blessed.tree_hash
    forged = replace(blessed, tree=tree, tree_hash=tree.hash, version=10**9)
    blessings = Blessings(scratch / "project/manifests/blessed", scratch / "state/blessings")
    path = promotion.promote(blessings, forged)
    fleet_blessings.push_blessing(
        next(one for one in blessings.all() if one.path == path),
        blessings,
        "linux/amd64",
        world.places,
        repository,
        Silent(),
    )
    return forged


def test_an_altered_library_is_served_only_after_trials_here(
    worlds: Worlds, tmp_path: Path, docker_client: DockerClient
) -> None:
    here = worlds.make({"    blessed: true": "    dev: true\n    blessed: true"})
    there = replace(here, directory=tmp_path / "there", started=[])
    worlds.made.append(there)
    shutil.copytree(here.directory, there.directory, symlinks=True)
    bless = ("bless", IMAGE, "--profile", here.profile("blessed"), "--unsafe-trials", "2", "--json")
    assert here.nvllm(*bless).result["version"] == 1
    blessings = Blessings.of_project(there.project, there.places)
    with oci_registry.running() as server:
        forged = altered(here, tmp_path / "forged", server.repository())
        pulled = fleet_blessings.pull_blessing(
            server.repository(), forged.serve_hash, None, blessings, there.places, Silent()
        )
    assert (pulled.candidate, pulled.manifest) == (True, forged)

    refused = there.serve("--dry-run", profile="blessed")
    assert refused.codes == ["NV901"]
    assert f"--candidate {forged.tree_hash[:12]}" in refused.out
    tried = there.nvllm(*bless, "--candidate", forged.tree_hash[:12]).result
    assert (tried["version"], tried["boots"], tried["tree_hash"]) == (1, 2, forged.tree_hash)
    evidence = there.places.blessing / there.instance("blessed") / "1"
    assert sorted(path.name for path in evidence.iterdir()) == ["trial-1", "trial-2"], "nothing was compiled"
    assert blessings.candidates() == ()
    ready = there.serve("--detach", profile="blessed")
    assert ready.code == 0, ready
    there.nvllm("stop", there.instance("blessed"))
    assert there.containers(docker_client) == []
