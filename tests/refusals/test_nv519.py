"""NV519, memory running out: the watchdog ends the engine of a campaign, and nothing gets a verdict by that.

What the kernel says of memory is planted; the engine is made up. `tests/e2e/test_watchdog.py` has a real container.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvllm.bless.preflight import BlessRequest
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.core.spec import MEMORY_FLOOR
from nvllm.evidence import runner
from nvllm.host import facts
from nvllm.host.facts import ContainerState
from nvllm.serve import startup, watchdog
from nvllm.serve.startup import EngineStart
from nvllm.trials import bench
from nvllm.trials.answers import ProbeState
from nvllm.trials.probing import Asked, LegProbe
from support import bless_world, evidence_world
from support.evidence_world import World
from support.plansamples import FrontEnd

GIB = 2**30


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the kernel says of memory; a test changes it."""
    said = {"MemAvailable": 8 * GIB}
    monkeypatch.setattr(facts, "memory", lambda: said)
    monkeypatch.setattr(watchdog, "INTERVAL", 0.002)
    monkeypatch.setattr(startup, "POLL", 0.005)
    monkeypatch.setattr(runner, "REST", 0.1)
    return said


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> World:
    """A runner whose containers end when they are killed, as real ones do."""
    found = evidence_world.world(tmp_path, front, evidence_world.probe())
    engine = found.engine
    kill = engine.kill

    def killed(container: str) -> None:
        kill(container)
        if engine.status is not None and engine.status.exit_code is None:
            engine.status = ContainerState(137, out_of_memory=False)
            engine.lines.put(None)

    monkeypatch.setattr(engine, "kill", killed)
    return found


def refused(made: World) -> Refusal:
    with pytest.raises(Refused) as caught:
        made.runner.run()
    (refusal,) = caught.value.refusals
    assert caught.value.exit_code == 3
    return refusal


def verdicts(made: World) -> list[Path]:
    return sorted(made.directory.path.glob("arms/*/*/verdict.json"))


def test_while_an_engine_starts(made: World, memory: dict[str, int]) -> None:
    made.engine.in_trial = lambda: memory.update(MemAvailable=100 << 20)
    made.engine.warm = ()  # it never becomes ready
    refusal = refused(made)
    assert refusal.code == "NV519"
    assert refusal.expected == f"at least {MEMORY_FLOOR >> 20} MiB of MemAvailable, the profile's campaign.memory-floor"
    assert refusal.found == "100 MiB, so nvllm-demo-eager was ended; what it was asked has no verdict"
    assert refusal.cure == "stop what uses memory, and go on: nvllm ablate"
    assert verdicts(made) == []


@dataclass
class Starved:
    """A probe that lets the host lose its memory halfway through its second leg, and waits for the engine's end."""

    inner: LegProbe
    memory: dict[str, int]
    ended: Callable[[], bool]
    legs: int = 0

    @property
    def state(self) -> ProbeState:
        return self.inner.state

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        self.legs += 1

        def lost() -> None:
            if self.legs == 2:
                self.memory["MemAvailable"] = 1
                deadline = time.monotonic() + 10
                while not self.ended() and time.monotonic() < deadline:
                    time.sleep(0.01)
            halfway()

        return self.inner.ask(start, run, lost)


def test_while_questions_are_answered_the_run_ends_and_goes_on_later(made: World, memory: dict[str, int]) -> None:
    """The second leg loses its memory between two questions; the first keeps its verdict."""
    engine = made.engine
    made.runner.probe = Starved(
        made.runner.probe, memory, lambda: engine.status is None or engine.status.exit_code is not None
    )
    assert refused(made).code == "NV519"
    assert len(verdicts(made)) == 1
    memory["MemAvailable"] = 8 * GIB
    assert {one.outcome for one in made.runner.run().arms} == {"passed"}
    assert len(verdicts(made)) == 4


@pytest.mark.parametrize("at", ["bootstrap", "trial"])
def test_a_bless_brings_nothing_into_force(
    tmp_path: Path, front: FrontEnd, memory: dict[str, int], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host loses its memory while the engine is asked, in the cold compile or in the first trial."""
    with bless_world.world(tmp_path, front) as bless:
        killed: list[str] = []
        monkeypatch.setattr(bless.engine, "kill", killed.append)

        def lost(_: bytes) -> None:
            if len(bless.engine.plans) == (1 if at == "trial" else 0):
                memory["MemAvailable"] = 1
                deadline = time.monotonic() + 10
                while not killed and time.monotonic() < deadline:
                    time.sleep(0.01)

        front.at_request = lost
        with pytest.raises(Refused) as caught:
            bless.work.run(BlessRequest(5))
    assert [one.code for one in caught.value.refusals] == ["NV519"]
    assert len(bless.engine.plans) == (1 if at == "trial" else 0)


def test_a_bisect_blames_no_set_of_patches_for_it() -> None:
    with pytest.raises(Refused):
        bench.blamed(refuse("NV519", "/proc/meminfo", "512 MiB", "1 MiB", "free"), 1.0)
