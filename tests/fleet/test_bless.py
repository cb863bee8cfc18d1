"""A blessing whose trials run on a machine of a real Ray cluster, with vLLM in its container.

The compile and the first trial run on the driver. The machine has a state and a model store of its own; the engine is
the same one, and its layers are those of the driver, for two copies of the image would fill a small disk.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nvllm.cache import manifest
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places
from nvllm.host.facts import TASK_LABEL
from support.engine_world import IMAGE, MODEL, World, Worlds, until
from support.real_registry import RealRegistry

pytest.importorskip("ray")
from support.ray_cluster import RayWorld, cluster

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = [pytest.mark.fleet, pytest.mark.long]


def named(ray: RayWorld, home: Path, *names: str) -> dict[str, str]:
    """Return the class that each of the machines says of itself, once all NAMES are there."""
    found: dict[str, str] = {}

    def there() -> bool:
        found.update({one["machine"]: one["class"] for one in ray.status(home) if "class" in one})
        return set(found) >= set(names)

    until(there, f"the machines {names}", 240)
    return found


def furnished(world: World, home: Path) -> Places:
    """Give the nvllm at HOME the layers of WORLD, and return its places; it has no image, model or tree."""
    places = Places(home / "cache", home / "state")
    places.layers.parent.mkdir(parents=True, exist_ok=True)
    places.layers.mkdir(mode=0o700)
    for one in world.places.layers.iterdir():
        (places.layers / one.name).symlink_to(one)
    return places


def test_a_trial_on_another_machine_counts(
    worlds: Worlds, tmp_path: Path, real: RealRegistry, docker_client: DockerClient
) -> None:
    world = worlds.make({"    blessed: true": "    dev: true\n    blessed: true"})
    own = world.directory / "own"
    shutil.copytree(world.places.models, Places(own / "cache", own / "state").models)
    shutil.copytree(world.places.builds, Places(own / "cache", own / "state").builds)
    furnished(world, own)
    with cluster(tmp_path / "cluster", world.project.root) as ray:
        places = furnished(world, ray.place / "right")
        ray.add("right", "")
        ray.add("other", "", other=True)
        said = named(ray, own, "right", "other")
        assert said["right"] != said["other"]
        on = ["--unsafe-trials", "2", "--on", ray.address, "--registry", real.name]
        words = ["bless", IMAGE, "--profile", world.profile("blessed"), *on]

        would = ray.nvllm(own, *words, "--dry-run").result
        assert (would["boots_here"], would["machines"]) == (1, ["right"])

        lacking = ray.nvllm(own, *words)
        assert set(lacking.codes) == {"NV401"}
        assert lacking.refusal["where"].startswith("right: ")
        assert not list((own / "state/blessing").glob("*/*/bootstrap"))

        shutil.copytree(world.places.models / MODEL, places.models / MODEL)
        done = ray.nvllm(own, *words)
        assert done.code == 0, done
        assert done.result["machines"] == [None, "right"]
    written = world.project.root / done.result["file"]
    new = manifest.read(written, written.name)
    here, there = new.trials
    assert here.machine is None
    assert there.machine == manifest.TrialMachine("right", said["right"])
    assert here.boot != there.boot
    TreeStore(places.trees).verify(new.tree, "")
    (evidence,) = (own / f"state/blessing/{world.instance('blessed')}").glob("*/trial-2")
    assert hashlib.sha256((evidence / "engine.log").read_bytes()).hexdigest() == there.log
    (task,) = [json.loads(one.read_bytes()) for one in (evidence.parent / "tasks").iterdir()]
    assert (task["machine"], task["number"], task["end"]) == ("right", 2, "good")
    left = docker_client.api.containers(all=True, filters={"label": f"{TASK_LABEL}={task['task']}"})
    assert left == []
    assert not any((ray.place / "other/state").glob("task"))
