"""Machines and drivers of a real Ray cluster that are killed at each boundary of a task.

Two machines try something at the same time. One waits before its trial, so the search cannot end; the other one stops
at the boundary, is lost there, and comes back with what is on its disk.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.buildable import Buildable
from support.engine_world import until
from support.ray_bisect import CAUSE, PATCHES, Bisect, named, own_class
from support.real_registry import RealRegistry

pytest.importorskip("ray")
from support.ray_cluster import RayMachine, RayWorld, cluster

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = pytest.mark.fleet

BOUNDARIES = {
    "queued": set(),
    "started": set(),
    "accepted": {"noted"},
    "pulling": {"noted", "fetched"},
    "pulled": {"noted", "fetched", "recorded"},
    "trying": {"noted", "fetched", "recorded", "begun", "container"},
    "answered": {"fetched", "recorded", "begun"},
}
"""What is there of a task when its machine is lost: before and after Ray starts it, before the pull and in it, before
the container and with it, and before the answer is delivered."""

SHORT = ("--bad", ",".join(CAUSE), "--repeats", "1")
"""Options of a bisect of the two patches alone, each set tried once."""

LOST, STAYS = "lost", "stays"
"""Machines. The first one gets what comes first, because of its name."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Buildable:
    return Buildable(tmp_path_factory.mktemp("small"), PATCHES)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, small: Buildable) -> Iterator[RayWorld]:
    with cluster(tmp_path_factory.mktemp("cluster") / "world", small.project.root) as found:
        yield found


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    found = RealRegistry(tmp_path_factory.mktemp("registry"))
    found.start()
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def stays(world: RayWorld, small: Buildable) -> RayMachine:
    """The machine that is never lost."""
    return world.add(STAYS, own_class(small))


@pytest.fixture
def bisect(
    tmp_path: Path, small: Buildable, world: RayWorld, registry: RealRegistry, docker_client: DockerClient
) -> Iterator[Bisect]:
    found = Bisect(tmp_path, small, world, registry, docker_client, kept=(LOST, STAYS))
    try:
        yield found
    finally:
        found.end()


def fresh(world: RayWorld, name: str, own: str) -> RayMachine:
    """Return the machine NAME of the class OWN, with nothing on its disk; it is started if it does not run."""
    for one in ("cache", "state"):
        shutil.rmtree(world.place / name / one, ignore_errors=True)
    return world.running(name) or world.add(name, own)


def seen(bisect: Bisect, machine: RayMachine, task: str) -> set[str]:
    """Return what is there of TASK, which MACHINE was sent."""
    found = {
        "noted": (machine.home / "state/worker" / task).exists(),
        "fetched": any(one.is_file() for one in (machine.home / "cache/store").rglob("*")),
        "recorded": any((machine.home / "state/builds").glob("*.json")),
        "begun": task in bisect.begun(),
        "container": task in bisect.containers(),
    }
    return {name for name, there in found.items() if there}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_machine_is_lost_at_a_boundary_and_comes_back(bisect: Bisect, stays: RayMachine, boundary: str) -> None:
    world, own = bisect.world, bisect.start(*SHORT)
    lost = fresh(world, LOST, own)
    stays.stop_at("pulled")
    if boundary == "queued":
        lost.freeze()
    elif boundary == "trying":
        (bisect.place / "hold").touch()
    else:
        lost.stop_at(boundary)
    driver = bisect.begin()
    until(stays.stopped, "the other machine waits", 90)
    until(lambda: boundary in {"queued", "trying"} or lost.stopped(), "the boundary", 90)
    until(lambda: boundary != "trying" or bool(bisect.begun()), "the trial", 90)
    (waiting,) = [one.name for one in (stays.home / "state/worker").iterdir()]
    (task,) = bisect.tasks("sent") - {waiting}
    assert seen(bisect, lost, task) == BOUNDARIES[boundary]
    lost.lose()
    until(lambda: bool(bisect.records("lost")), "the loss", 60)
    (bisect.place / "hold").unlink(missing_ok=True)
    lost.go_on()
    world.add(lost.name, own)
    if boundary == "trying":
        said = named(world, bisect.home, lost.name, STAYS)
        assert {name for name, one in said.items() if one["orphans"]} == {lost.name}
    stays.go_on()
    bisect.check(bisect.ends(driver))
    (found,) = [one for one in bisect.records("lost") if one["task"] == task]
    assert found["why"].startswith(f"{lost.name}: ")
    assert [one["attempt"] for one in bisect.records("sent") if one["chosen"] == found["chosen"]] == [1, 2]
    bisect.none_left()
    assert not list((lost.home / "state/worker").iterdir())  # it tried something, and removed what was left


def test_two_machines_are_lost_at_once_and_one_comes_back(bisect: Bisect, stays: RayMachine) -> None:
    world, own = bisect.world, bisect.start(*SHORT)
    both = [fresh(world, name, own) for name in (LOST, f"{LOST}-too")]
    for one in (*both, stays):
        one.stop_at("pulled")
    driver = bisect.begin()
    until(lambda: all(one.stopped() for one in (*both, stays)), "three machines wait", 90)
    for one in both:
        one.lose()
    until(lambda: len(bisect.records("lost")) == 2, "both losses", 60)
    both[0].go_on()
    world.add(both[0].name, own)
    stays.go_on()
    bisect.check(bisect.ends(driver))
    assert {one["why"].partition(":")[0] for one in bisect.records("lost")[:2]} == {one.name for one in both}
    bisect.none_left()
    assert not list((both[0].home / "state/worker").iterdir())


@pytest.mark.parametrize("boundary", ["sent", "delivered"])
def test_a_driver_is_killed_at_a_boundary_and_continued(bisect: Bisect, stays: RayMachine, boundary: str) -> None:
    """Before the task that the journal has is sent, and after its answer has come and is not in the journal."""
    bisect.start(*SHORT)
    bisect.world.lose_machines(STAYS)
    named(bisect.world, bisect.home, STAYS)
    stop = bisect.home / "stop"
    stop.write_text(boundary)
    driver = bisect.begin()
    until(stop.with_name("stopped").exists, "the boundary", 90)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    stop.unlink()
    stop.with_name("stopped").unlink()
    (task,) = bisect.tasks("sent")
    assert bisect.begun() == ({task} if boundary == "delivered" else set())
    assert not bisect.records("trial", "lost")
    bisect.check(bisect.ends(bisect.begin()))
    (lost,) = [one for one in bisect.records("lost") if one["task"] == task]
    assert lost["why"] == "the driver that sent it ended"
    assert [one["attempt"] for one in bisect.records("sent") if one["chosen"] == lost["chosen"]] == [1, 2]
    bisect.none_left()
