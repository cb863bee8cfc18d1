"""Trials on the machines of a real Ray cluster: two classes, a wrong label, a lost machine, a killed driver.

The image is a small one, and the probe looks into it without starting it: what is proved is the search and its books,
not vLLM, which the same trial serves on one machine in the end-to-end tests.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.buildable import Buildable
from support.engine_world import run, until
from support.ray_bisect import PATCHES, Bisect, named
from support.real_registry import RealRegistry

pytest.importorskip("ray")
from support.ray_cluster import STORE, RayWorld, cluster

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = pytest.mark.fleet

IMPATIENT = {"RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "1"}
"""Makes a driver that Ray refuses give up sooner."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Buildable:
    return Buildable(tmp_path_factory.mktemp("small"), PATCHES)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, small: Buildable) -> Iterator[RayWorld]:
    with cluster(tmp_path_factory.mktemp("cluster") / "world", small.project.root) as found:
        yield found


@pytest.fixture
def bisect(
    tmp_path: Path, small: Buildable, world: RayWorld, real: RealRegistry, docker_client: DockerClient
) -> Iterator[Bisect]:
    found = Bisect(tmp_path, small, world, real, docker_client)
    try:
        yield found
    finally:
        found.end()


def test_two_classes_and_a_wrong_label(bisect: Bisect) -> None:
    world, own = bisect.world, bisect.start()
    world.add("right", own)
    world.add("unlabelled", "")
    world.add("liar", own, other=True)
    world.add("other", "", other=True)
    said = named(world, bisect.home, "right", "unlabelled", "liar", "other")
    assert said["right"]["class"] == said["unlabelled"]["class"] == own
    assert said["liar"]["class"] == said["other"]["class"] != own
    assert said["liar"]["label"] == own
    done = bisect.run()
    bisect.check(done.result)
    assert {one["host"] for one in bisect.records("sent")} == {own}
    assert "liar is of class" in done.err
    assert not bisect.containers()
    assert not any((world.place / one / "state/task").exists() for one in ("liar", "other"))


def test_a_driver_that_is_killed_is_resumed_and_nothing_counts_twice(bisect: Bisect) -> None:
    world, own = bisect.world, bisect.start("--repeats", "1")
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
    bisect.check(bisect.ends(driver))
    assert {one["task"] for one in bisect.records("lost")} >= before
    assert not before & {one["task"] for one in bisect.records("trial")}
    assert not bisect.containers()


def test_a_class_that_no_machine_has_is_refused_before_anything_is_sent(bisect: Bisect) -> None:
    world = bisect.world
    bisect.start("--repeats", "1")
    world.add("other", "", other=True)
    named(world, bisect.home, "other")
    refused = bisect.run()
    assert refused.codes == ["NV343"]
    assert "other: cpu-" in refused.refusal["found"]
    assert not bisect.records("build", "sent")


def test_another_token_is_refused(bisect: Bisect) -> None:
    world = replace(bisect.world, token="0" * 48)
    argv = world.argv("fleet", "status", "--on", world.address, "--json")
    assert run(argv, {**world.env, **IMPATIENT, "NVLLM_HOME": str(bisect.home)}).codes == ["NV346"]


def test_who_has_no_token_is_refused_by_ray(bisect: Bisect) -> None:
    """nvllm refuses to ask without a token; Ray itself refuses it too, though it only says that time is over."""
    world = bisect.world

    def connects(mode: str) -> bool:
        env = {**world.env, **IMPATIENT, "RAY_AUTH_MODE": mode}
        return run([sys.executable, "-c", f"import ray; ray.init({world.address!r})"], env).code == 0

    assert (connects("token"), connects("disabled")) == (True, False)


def test_the_settings_of_each_machine_are_shown(bisect: Bisect) -> None:
    world = bisect.world
    world.add("watches", "", env={"RAY_memory_monitor_refresh_ms": "250"})
    said = named(world, bisect.home, "watches")
    assert {name: one["memory_monitor"] for name, one in said.items()} == {"head": "off", "watches": "on"}
    assert {one["object_store_bytes"] for one in said.values()} == {STORE}
    assert not any(one["unified_memory"] for one in said.values())


def test_a_cluster_without_tokens_gets_no_work(bisect: Bisect, tmp_path: Path) -> None:
    own = bisect.start("--repeats", "1")
    with cluster(tmp_path / "open", bisect.world.project, "disabled") as anew:
        machine = anew.add("first", own)
        bisect.world = anew
        assert bisect.run().codes == ["NV346"]
        assert not bisect.records("trial")
        assert not (machine.home / "state").exists()


def test_a_lost_head_ends_the_run_and_the_next_one_goes_on(bisect: Bisect, tmp_path: Path) -> None:
    """The last test: the cluster that all of them share is gone then."""
    world, own = bisect.world, bisect.start("--repeats", "1")
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
