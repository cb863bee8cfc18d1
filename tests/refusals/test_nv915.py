"""NV915, ended by another: what another process kills or removes has no verdict, and a leg of a campaign is run again.

The engine is made up; `tests/e2e/test_two_homes.py` has a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused, refuse
from nvllm.evidence import runner
from nvllm.host.facts import ContainerState
from nvllm.serve import startup
from nvllm.serve.startup import EngineStart
from nvllm.trials import bench
from nvllm.trials.answers import ProbeState
from nvllm.trials.probing import Asked, LegProbe
from support import evidence_world
from support.evidence_world import World
from support.plansamples import FrontEnd

KILLED, REMOVED = ContainerState(137, out_of_memory=False), None


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(startup, "POLL", 0.005)
    monkeypatch.setattr(runner, "REST", 0.1)
    return evidence_world.world(tmp_path, front, evidence_world.probe())


@dataclass
class Disturbed:
    """A probe during whose legs, by their numbers, another process leaves the container in a state."""

    inner: LegProbe
    leave: Callable[[ContainerState | None], None]
    states: dict[int, ContainerState | None]
    legs: list[int] = field(default_factory=list)

    @property
    def state(self) -> ProbeState:
        return self.inner.state

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        self.legs.append(run)
        asked = self.inner.ask(start, run, halfway)
        if len(self.legs) in self.states:
            self.leave(self.states[len(self.legs)])
        return asked


def disturb(made: World, states: dict[int, ContainerState | None]) -> Disturbed:
    made.runner.probe = Disturbed(made.runner.probe, lambda state: setattr(made.engine, "status", state), states)
    return made.runner.probe


@pytest.mark.parametrize("state", [KILLED, REMOVED])
def test_a_leg_that_another_process_ended_is_run_again(made: World, state: ContainerState | None) -> None:
    disturbed = disturb(made, {2: state})
    assert {one.outcome for one in made.runner.run().arms} == {"passed"}
    assert len(disturbed.legs) == 5


def test_a_leg_that_is_always_ended_has_no_verdict_and_the_run_goes_on_later(made: World) -> None:
    disturb(made, dict.fromkeys((2, 3, 4), KILLED))
    with pytest.raises(Refused) as caught:
        made.runner.run()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.expected) == ("NV915", "a container that nobody else ends")
    assert refusal.found.endswith("and not by its memory limit; what it was asked has no verdict")
    assert refusal.cure == "find out who ends containers here, and go on: nvllm ablate"
    assert len(list(made.directory.path.glob("arms/*/*/verdict.json"))) == 1
    assert {one.outcome for one in made.runner.run().arms} == {"passed"}


@pytest.mark.parametrize("state", [ContainerState(137, out_of_memory=True), ContainerState(139, out_of_memory=False)])
def test_an_engine_that_dies_by_itself_is_no_such_thing(made: World, state: ContainerState) -> None:
    disturbed = disturb(made, {1: state})
    assert "invalid" in {one.outcome for one in made.runner.run().arms}
    assert len(disturbed.legs) == 4


def test_a_start_that_another_process_ended_is_begun_again(made: World) -> None:
    starts: list[str] = []
    start = made.engine.start

    def started(*arguments: object) -> str:
        container = start(*arguments)  # type: ignore[arg-type]  # whatever it is called with
        starts.append(container)
        if len(starts) == 1:
            made.engine.status = KILLED
            made.engine.lines.put(None)
        return container

    vars(made.engine)["start"] = started
    assert {one.outcome for one in made.runner.run().arms} == {"passed"}
    assert len(starts) == 5


def test_a_bisect_blames_no_set_of_patches_for_it() -> None:
    with pytest.raises(Refused):
        bench.blamed(refuse("NV915", "container x", "nobody", "another process removed it", "go on"), 1.0)
