"""A service whose engine and examinations are made up; the rest is real.

Examinations ask the container engine, which is out of reach of unit tests; the whole is the end-to-end suite's.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from nvllm.core.paths import Places, Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import RestartRules
from nvllm.engine.engine import Engine
from nvllm.host import locks
from nvllm.serve import service, startup, stopping, supervisor
from nvllm.serve.examination import Examination
from nvllm.serve.health import Generation
from nvllm.serve.rundir import InstanceState, RunDirectory
from nvllm.serve.service import ServiceRequest
from nvllm.serve.stopping import Orphan
from nvllm.serve.supervisor import Supervisor
from support.plansamples import MODEL, PLAN, SPEC, FrontEnd, build, places, with_profile
from support.serve_world import ID, STARTED, FakeEngine, Noted

PAUSE = service.pause
RULES = RestartRules(attempts=2, within=3600, pause=1)


@dataclass
class Dying(FakeEngine):
    """An engine whose containers are ready at once; what is in FATES then happens to each in turn."""

    fates: list[Callable[[], None]] = field(default_factory=list)

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        self.chunks = queue.SimpleQueue()  # the log of another container
        made = super().start(plan, labels)
        self.says(*STARTED)
        self.later = [lambda: None] * 3 + self.fates[:1]
        self.fates = self.fates[1:]
        return made

    def dies(self) -> None:
        self.says("Segmentation fault")
        self.ends(139)


@dataclass
class Clock:
    """The module time, with a clock that is STEP seconds later whenever it is asked."""

    step: float
    asked: int = 0

    def time(self) -> float:
        self.asked += 1
        return 1_800_000_000.0 + self.asked * self.step

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


@dataclass
class World:
    """A service of one profile with RULES, and what becomes of it."""

    places: Places
    engine: Dying
    noted: Noted
    served: ServiceRequest
    examination: Examination
    examined: list[Examination] = field(default_factory=list)
    """What the examinations after the first find; the same as the first when it is empty."""
    announced: int = 0

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.places.run(PLAN.instance))

    def serve(self) -> None:
        service.run(self.served, self.examination, self._announce)

    def refusal(self) -> Refusal:
        with pytest.raises(Refused) as caught:
            self.serve()
        (refusal,) = caught.value.refusals
        return refusal

    def _announce(self, _running: Supervisor, _generation: Generation) -> None:
        self.announced += 1

    def state(self) -> InstanceState:
        found = self.run.read_state()
        assert found is not None
        return found

    def stopped_by_the_user(self) -> None:
        self.run.ask_to_stop()


def examination(front: FrontEnd, engine: Dying, rules: RestartRules | None) -> Examination:
    spec = with_profile(SPEC, port=front.port, restart=rules)
    plan = replace(PLAN, port=front.port, limits=replace(PLAN.limits, start_timeout=30))
    return Examination(spec.profiles["eager"], plan, (MODEL,), (), (), cast("Engine", engine), build(spec))


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(supervisor, "PAUSE", 0.01)
    where, engine, noted = places(tmp_path), Dying(), Noted()
    served = ServiceRequest(Project(tmp_path), where, "demo", "eager", "nvllm serve demo --profile eager", False, noted)
    world = World(where, engine, noted, served, examination(front, engine, RULES))

    def examined(*_: object, **__: object) -> Examination:
        return world.examined.pop(0) if world.examined else world.examination

    monkeypatch.setattr(service, "examine", examined)
    monkeypatch.setattr(service, "pause", lambda _rules, _deaths: 0.02)
    yield world
    assert locks.status(where.locks) == ()


def orphaned(made: World) -> Orphan:
    """Leave the container of a supervisor that was killed, and return it."""
    made.engine.start(PLAN, startup.labels(PLAN, made.run.path))
    made.run.prepare({}, b"{}", ())
    made.run.write_state(
        InstanceState(PLAN.instance, "demo", "eager", False, "ready", "b", "c", made.examination.plan.port, 1, ID, 1.0)
    )
    made.engine.asked.clear()
    made.engine.fates = [made.stopped_by_the_user]
    left = stopping.orphan(cast("Engine", made.engine), made.places, PLAN.instance)
    assert left is not None
    return left
