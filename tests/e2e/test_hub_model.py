"""A model of the hub: followed by the lock, fetched at its revision, served with no hub in reach.

The hub is out of reach where the tests run: a small one on loopback stands for it, and the real client talks to
it. What it holds is the demo's tiny model, so that what comes back is really served.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from support import hubserver
from support.engine_world import IMAGE, MODEL, World, Worlds

pytestmark = pytest.mark.engine


def world_of_the_hub(worlds: Worlds) -> World:
    """Return a world whose model comes from the hub, from a branch that moves."""
    world = worlds.make()
    (old,) = re.findall(r"    kind: directory\n    recipe: .*\n    tree: .*\n", world.spec.read_text())
    world.edit({old: f"    kind: huggingface\n    repo: {hubserver.REPO}\n    follow: main\n"})
    return world


def environment(tmp_path: Path, endpoint: str) -> Mapping[str, str]:
    return {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": hubserver.LOOPBACK,
        "no_proxy": hubserver.LOOPBACK,
    }


def test_a_branch_is_pinned_fetched_and_served_without_the_hub(worlds: Worlds, tmp_path: Path) -> None:
    world = world_of_the_hub(worlds)
    files = {path.name: path.read_bytes() for path in world.model.iterdir()}
    with hubserver.serving(files) as hub:
        env = environment(tmp_path, hub.endpoint)
        pinned = hub.branches["main"]
        missing = world.nvllm("serve", IMAGE, "--profile", world.profile(), "--json", "--dry-run", env=env)
        assert "NV202" in missing.codes  # the spec is another one than the lock was made from

        locked = world.nvllm("lock", IMAGE, "--json", env=env)
        assert locked.result["changed"]
        assert world.nvllm("serve", IMAGE, "--profile", world.profile(), "--json", env=env).codes == ["NV401"]

        # The branch moves on. The lock does not, and what is fetched is what it names.
        hub.push({**files, "config.json": b'{"another": "model"}\n'})
        drift = world.nvllm("lock", IMAGE, "--check", "--update", "models", "--json", env=env)
        assert drift.code == 1
        assert [one["kind"] for one in drift.document["result"]["drift"]] == ["model-moved"]
        fetched = world.nvllm("model", "fetch", IMAGE, MODEL, "--json", env=env)
        assert fetched.result["revision"] == pinned

    # The hub is gone now: nothing listens at its address any more.
    served = world.nvllm("serve", IMAGE, "--profile", world.profile(), "--detach", "--json", env=env)
    assert served.code == 0, served
    plan = (world.run_directory() / "plan.json").read_text()
    assert pinned in plan
    assert world.nvllm("stop", world.instance()).code == 0

    # One blob loses its end: refused, with nothing started.
    (weights,) = [path for path in (tmp_path / "hub").rglob("blobs/*") if path.stat().st_size == 291488]
    weights.write_bytes(weights.read_bytes()[:-1])
    refused = world.nvllm("serve", IMAGE, "--profile", world.profile(), "--json", env=env)
    assert refused.code == 3
    assert refused.codes == ["NV403"]
    assert "291487" in refused.refusal["found"]
