"""Trials on the machines of a real Ray cluster: two classes, a wrong label, a lost machine, a killed driver.

The image is a small one, and the probe looks into it without starting it: what is proved is the search and its books,
not vLLM, which the same trial serves on one machine in the end-to-end tests.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nvllm.host.facts import TASK_LABEL
from support import looking_probe
from support.buildable import IMAGE, Buildable
from support.engine_world import Done, until
from support.real_registry import RealRegistry

pytest.importorskip("ray")
from support.ray_cluster import RayWorld, cluster

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = pytest.mark.fleet

PATCHES = ("guard", "key", "top", "end")
CAUSE = ["key", "top"]
"""The planted patches: with both of them the probe fails."""


@dataclass
class Bisect:
    """A bisect of the small image below PLACE, on WORLD, through REGISTRY."""

    place: Path
    world: RayWorld
    registry: RealRegistry
    client: DockerClient

    @property
    def home(self) -> Path:
        return self.place / "small/home"

    @property
    def journal(self) -> Path:
        return self.home / f"state/bisect/{IMAGE}/journal.jsonl"

    def start(self) -> str:
        """Start the bisect, and return the class of this host."""
        probe = looking_probe.write(self.place)
        words = ["start", IMAGE, "--set", "--bad", "all", "--good", "none", "--build-only", "--test", str(probe)]
        assert self.world.nvllm(self.home, "bisect", *words).code == 0
        return str(self.records("start")[0]["host"])

    @property
    def words(self) -> list[str]:
        return ["bisect", "run", "--on", self.world.address, "--registry", self.registry.name]

    def run(self) -> Done:
        return self.world.nvllm(self.home, *self.words)

    def begin(self) -> subprocess.Popen[bytes]:
        """Run the driver in the background."""
        env = {**self.world.env, "NVLLM_HOME": str(self.home)}
        with (self.place / "driver.log").open("ab") as log:
            return subprocess.Popen(self.world.argv(*self.words), env=env, stdout=log, stderr=log)

    def report(self) -> Mapping[str, Any]:
        return self.world.nvllm(self.home, "bisect", "report").result

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [one for line in lines if (one := json.loads(line))["record"] in kinds]

    def begun(self) -> set[str]:
        return {one.name for one in (self.place / "begun").glob("*")}

    def containers(self) -> set[str]:
        """Return the tasks that have a container."""
        found = self.client.api.containers(all=True, filters={"label": TASK_LABEL})
        return {one["Labels"][TASK_LABEL] for one in found} & {one["task"] for one in self.records("sent")}

    def check(self, done: Mapping[str, Any]) -> None:
        """Check that DONE found the cause, that every task ended once, and that another machine decides the same."""
        assert done["found"]["culprits"] == CAUSE
        assert done["found"]["certified"]
        sent = Counter(one["task"] for one in self.records("sent"))
        ends = Counter(one["task"] for one in self.records("trial", "lost"))
        assert set(sent.values()) == {1}
        assert ends == sent
        kept = {one.name for one in (self.journal.parent / "evidence").iterdir()}
        assert {one["evidence"] for one in self.records("trial")} == kept
        assert self.world.nvllm(self.home, "bisect", "replay", str(self.journal)).code == 0


@pytest.fixture
def bisect(tmp_path: Path, real: RealRegistry, docker_client: DockerClient) -> Iterator[Bisect]:
    small = Buildable(tmp_path / "small", PATCHES)
    with cluster(tmp_path / "cluster", small.project.root) as world:
        found = Bisect(tmp_path, world, real, docker_client)
        try:
            yield found
        finally:
            world.end()
            for one in docker_client.api.containers(all=True, filters={"label": TASK_LABEL}):
                if one["Labels"][TASK_LABEL] in found.begun():
                    docker_client.api.remove_container(one["Id"], force=True)
            for tag in {f"nvllm:{IMAGE}-{one['build_hash'][:12]}" for one in found.records("build")}:
                docker_client.api.remove_image(tag, force=True)


def named(world: RayWorld, home: Path, *names: str) -> list[dict[str, Any]]:
    """Return what the machines say of themselves once all NAMES are there."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = world.status(home)
        return {one["machine"] for one in found} >= set(names)

    until(there, f"the machines {names}", 120)
    return found


def test_two_classes_and_a_wrong_label(bisect: Bisect) -> None:
    world, own = bisect.world, bisect.start()
    world.add("right", own)
    world.add("unlabelled", "")
    world.add("liar", own, other=True)
    world.add("other", "", other=True)
    said = {one["machine"]: one for one in named(world, bisect.home, "right", "unlabelled", "liar", "other")}
    assert said["right"]["class"] == said["unlabelled"]["class"] == own
    assert said["liar"]["class"] == said["other"]["class"] != own
    assert said["liar"]["label"] == own
    done = bisect.run()
    bisect.check(done.result)
    assert {one["host"] for one in bisect.records("sent")} == {own}
    assert "liar is of class" in done.err
    assert not bisect.containers()
    assert not any((world.place / one / "state/task").exists() for one in ("liar", "other"))


def test_a_machine_that_is_lost_in_mid_trial_is_no_verdict(bisect: Bisect) -> None:
    world, own = bisect.world, bisect.start()
    first, second = world.add("first", own), world.add("second", own)
    named(world, bisect.home, "first", "second")
    (bisect.place / "hold").touch()
    driver = bisect.begin()
    until(lambda: len(bisect.begun()) == 2, "both machines try something", 90)
    (task,) = [one.name for one in (second.home / "state/worker").iterdir()]
    assert bisect.containers() == bisect.begun() >= {task}
    second.lose()
    (bisect.place / "hold").unlink()
    assert driver.wait(240) == 0, (bisect.place / "driver.log").read_text()[-3000:]
    bisect.check(bisect.report())
    (lost,) = [one for one in bisect.records("lost") if one["why"].startswith("second: ")]
    assert lost["task"] == task
    again = [one for one in bisect.records("sent") if one["chosen"] == lost["chosen"]]
    assert again[0]["attempt"] == 1
    assert max(one["attempt"] for one in again) == 2
    assert bisect.containers() == {task}  # the engine ran on
    world.add("second", own)  # the machine is back, with what is on its disk
    said = {one["machine"]: one for one in named(world, bisect.home, "second")}
    assert len(said["second"]["orphans"]) == 1
    assert said["first"]["orphans"] == []
    assert first.process.poll() is None


def test_a_driver_that_is_killed_is_resumed_and_nothing_counts_twice(bisect: Bisect) -> None:
    world, own = bisect.world, bisect.start()
    world.add("first", own)
    world.add("second", own)
    named(world, bisect.home, "first", "second")
    (bisect.place / "hold").touch()
    driver = bisect.begin()
    until(lambda: len(bisect.begun()) == 2, "both machines try something", 90)
    before = bisect.begun()
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not bisect.records("trial", "lost")
    driver = bisect.begin()
    until(lambda: len(bisect.records("lost")) == 2, "its tasks are lost", 60)
    # Ray ends the tasks of a driver that is gone; each worker removes its container, and only then begins the next.
    until(lambda: not bisect.containers() & before, "their containers are gone", 90)
    (bisect.place / "hold").unlink()
    assert driver.wait(240) == 0, (bisect.place / "driver.log").read_text()[-3000:]
    bisect.check(bisect.report())
    assert {one["task"] for one in bisect.records("lost")} >= before
    assert not before & {one["task"] for one in bisect.records("trial")}
    assert not bisect.containers()


def test_a_lost_head_ends_the_run_and_the_next_one_goes_on(bisect: Bisect, tmp_path: Path) -> None:
    world, own = bisect.world, bisect.start()
    world.add("first", own)
    named(world, bisect.home, "first")
    (bisect.place / "hold").touch()
    driver = bisect.begin()
    until(lambda: len(bisect.begun()) == 1, "the machine tries something", 90)
    world.end()
    (bisect.place / "hold").unlink()
    assert driver.wait(240) != 0
    assert not bisect.records("trial")
    with cluster(tmp_path / "second", world.project) as anew:
        anew.add("first", own)
        named(anew, bisect.home, "first")
        bisect.world = anew
        bisect.check(bisect.run().result)


def test_a_class_that_no_machine_has_is_refused_before_anything_is_sent(bisect: Bisect) -> None:
    world = bisect.world
    bisect.start()
    world.add("other", "", other=True)
    named(world, bisect.home, "other")
    refused = bisect.run()
    assert refused.codes == ["NV343"]
    assert "other: cpu-" in refused.refusal["found"]
    assert not bisect.records("build", "sent")


def test_another_token_is_refused(bisect: Bisect) -> None:
    world, began = bisect.world, time.monotonic()
    world.token = "0" * 48
    assert world.nvllm(bisect.home, "fleet", "status", "--on", world.address).codes == ["NV346"]
    assert time.monotonic() - began < 90
