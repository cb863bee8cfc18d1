"""Blessing on the real engine, from the compile to the refusals: blessed, served, tampered with, revoked.

The profile is a development one, so that two trials are enough to serve it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from docker import DockerClient

from engine_world import IMAGE, Worlds
from nvllm import bless
from nvllm.blessings import Blessings
from nvllm.plan import CACHE
from nvllm.treestore import TreeStore

pytestmark = [pytest.mark.engine, pytest.mark.long]

LOADED = "Directly load AOT compilation from path"
SAVED = "saved AOT compiled function to"


def owners(directory: Path) -> set[int]:
    return {path.lstat().st_uid for path in (directory, *directory.rglob("*"))}


def test_bless_serve_tamper_revoke(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make({"    blessed: true": "    dev: true\n    blessed: true"})
    profile = world.profile("blessed")
    assert world.serve("--dry-run", profile="blessed").codes == ["NV901"]

    done = world.nvllm("bless", IMAGE, "--profile", profile, "--unsafe-trials", "2", "--json")
    assert done.result["boots"] == 2
    assert done.result["unsafe"] is True
    assert world.containers(docker_client) == []
    held: Blessings = bless.blessings(world.project, world.places)
    (blessing,) = held.all()
    assert blessing.manifest is not None
    assert [(one.replays, one.compiles) for one in blessing.manifest.trials] == [(12, 0), (12, 0)]
    evidence = world.places.blessing / world.instance("blessed")
    assert SAVED in (evidence / "bootstrap/engine.log").read_text()
    for trial in ("trial-1", "trial-2"):
        log = (evidence / trial / "engine.log").read_text()
        assert LOADED in log
        assert SAVED not in log
    store = TreeStore(world.places.trees)
    store.verify(blessing.manifest.tree, "")
    # Whatever user the engine was, nothing that stays is another one's than the operator's.
    assert owners(world.places.state) | owners(world.places.trees) | owners(held.directory) == {os.geteuid()}

    again = world.nvllm("bless", IMAGE, "--profile", profile, "--unsafe-trials", "1", "--json")
    assert (again.code, again.codes) == (3, ["NV902"])

    served = world.serve("--detach", profile="blessed")
    assert served.result["tree"] == blessing.manifest.tree_hash
    container = docker_client.containers.get(served.result["container"])
    (mount,) = [one for one in container.attrs["Mounts"] if one["Destination"] == CACHE]
    assert mount["RW"] is False
    assert LOADED in (world.run_directory("blessed") / "engine.log").read_text()
    rows = json.loads(world.nvllm("status", "--json").out)["result"]["instances"]
    assert [row["blessed"] for row in rows if row["instance"] == world.instance("blessed")] == [blessing.manifest.label]
    assert world.nvllm("stop", world.instance("blessed")).code == 0
    assert list((world.places.staged / world.instance("blessed")).iterdir()) == []

    (model,) = store.path(blessing.manifest.tree_hash).rglob("rank_0_0/model")
    original = model.read_bytes()
    model.chmod(0o600)
    model.write_bytes(original[:1000] + bytes([original[1000] ^ 1]) + original[1001:])
    model.chmod(0o444)
    tampered = world.serve(profile="blessed")
    assert (tampered.code, tampered.codes) == (3, ["NV907"])
    assert tampered.refusal["where"] == str(model)
    assert world.containers(docker_client) == []

    model.chmod(0o600)
    model.write_bytes(original)
    model.chmod(0o444)
    assert world.serve("--dry-run", profile="blessed").code == 0
    assert world.nvllm("manifest", "revoke", blessing.manifest.label, "--reason", "a test").code == 0
    revoked = world.serve(profile="blessed")
    assert (revoked.code, revoked.codes) == (3, ["NV903"])
