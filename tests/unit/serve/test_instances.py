"""Instances as they are now, by their state files and a container engine that is made up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from nvllm.engine.engine import Engine
from nvllm.host import locks
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact
from nvllm.host.locks import Holder, Key
from nvllm.serve import instances
from nvllm.serve.rundir import InstanceState, RunDirectory, Stage
from support.plansamples import FrontEnd, places
from support.silent_fronts import WAYS


class Holding:
    """An engine that holds the containers of NAMES, each running or not."""

    def __init__(self, **names: bool) -> None:
        self.names = names

    def containers(self) -> tuple[ContainerFact, ...]:
        return tuple(ContainerFact(name, {INSTANCE_LABEL: name}, up, f"id-{name}") for name, up in self.names.items())


def keep(tmp_path: Path, name: str, stage: Stage, port: int = 8000) -> None:
    run = RunDirectory(places(tmp_path).runs / name)
    run.prepare({}, b"{}", ())
    run.write_state(InstanceState(name, "demo", "eager", False, stage, "", "", port, 1, "", 1.0))


@pytest.mark.parametrize(
    ("stage", "up", "seen"),
    [
        ("ready", True, "ready"),
        ("starting", True, "starting"),
        ("ready", False, "gone"),
        ("starting", None, "gone"),
        ("stopped", None, "stopped"),
        ("failed", False, "failed"),
    ],
)
def test_a_state_without_its_container_is_gone(
    tmp_path: Path, front: FrontEnd, stage: Stage, up: bool | None, seen: str
) -> None:
    keep(tmp_path, "one", stage, front.port)
    engine = Holding() if up is None else Holding(one=up)
    (found,) = instances.seen(cast("Engine", engine), places(tmp_path))
    assert (found.stage, found.running) == (seen, seen == "ready")


def test_one_that_answers_nothing_is_not_called_ready(tmp_path: Path) -> None:
    with WAYS["nobody listens"]() as port:
        keep(tmp_path, "one", "ready", port)
        (found,) = instances.seen(cast("Engine", Holding(one=True)), places(tmp_path))
    assert (found.stage, found.running) == ("silent", False)


def test_who_is_supervised_and_whose_state_is_elsewhere(tmp_path: Path, front: FrontEnd) -> None:
    keep(tmp_path, "one", "ready", front.port)
    holder = Holder(os.getpid(), "2026-11-22T12:00:00Z", "nvllm serve", "one")
    with locks.acquire_all(places(tmp_path).locks, [Key("port", "8000")], holder):
        found = instances.seen(cast("Engine", Holding(one=True, two=True)), places(tmp_path))
    assert [(one.name, one.stage, one.supervised) for one in found] == [
        ("one", "ready", True),
        ("two", "running", False),
    ]
    assert (found[1].container, found[1].state) == ("id-two", None)


def test_a_container_that_nvllm_did_not_create_is_no_instance(tmp_path: Path) -> None:
    class Foreign(Holding):
        def containers(self) -> tuple[ContainerFact, ...]:
            return tuple(ContainerFact(name, {}, up, f"id-{name}") for name, up in self.names.items())

    keep(tmp_path, "one", "ready")
    (found,) = instances.seen(cast("Engine", Foreign(one=True, database=True)), places(tmp_path))
    assert (found.name, found.stage) == ("one", "gone")  # the container of that name is somebody else's
