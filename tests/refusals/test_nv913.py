"""NV913, engine stuck: requests run, and for the stall timeout no token came; it was ended.

The container engine is out of reach of unit tests and is made up; the front end that says the metrics is real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.serve import health, startup, supervisor
from nvllm.serve.supervisor import Supervisor
from support.bless_world import World, world
from support.plansamples import FrontEnd

STUCK = """\
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 52.0
"""


class Noted(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world whose engine is ready at once."""
    monkeypatch.setattr(startup, "POLL", 0.005)
    with world(tmp_path, front) as found:
        yield found


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def serving(made: World, noted: Noted, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """A supervisor of an engine that is ready, and a stall timeout that a test can wait for."""
    monkeypatch.setattr(health, "METRICS_INTERVAL", 0.0)
    monkeypatch.setattr(supervisor, "PAUSE", 0.01)
    found = Supervisor(made.found, made.places, made.work.held_locks, noted)
    found.plan = replace(found.plan, limits=replace(found.plan.limits, stall_timeout=1))
    found.start()
    return found


def test_an_engine_that_is_stuck_is_ended(made: World, serving: Supervisor, front: FrontEnd, noted: Noted) -> None:
    front.metrics = STUCK
    with pytest.raises(Refused) as caught:
        serving.watch()
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV913", f"http://127.0.0.1:{front.port}/metrics")
    assert one.expected == "tokens generated within 1 s while requests run"
    assert one.found.startswith("requests are running, but made no progress for ")
    assert one.cure == f"less {serving.run.log}"
    assert made.engine.ended == ["killed", "removed"]
    state = serving.run.read_state()
    assert state is not None
    assert (state.stage, state.reason) == ("failed", one.found)
    said = [json.loads(line)["event"] for line in (serving.run.path / "evidence.jsonl").read_text().splitlines()]
    assert said.count("stalling") == 1
    assert len([note for note in noted.notes if note.startswith("STALLING ")]) == 1


@pytest.mark.parametrize("metrics", [None, "", STUCK.replace(" 2.0", " 0.0")], ids=["no page", "nothing", "idle"])
def test_one_that_is_idle_or_does_not_say_is_left_alone(
    serving: Supervisor, front: FrontEnd, noted: Noted, metrics: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.metrics = metrics
    looks = 0

    def counted(port: int) -> health.Metrics:
        nonlocal looks
        looks += 1
        if looks == 20:
            serving.run.ask_to_stop()
        return read(port)

    read = health.read_metrics
    monkeypatch.setattr(health, "read_metrics", counted)
    serving.watch()
    assert looks >= 20
    told = [note for note in noted.notes if note.endswith("nvllm cannot see whether it hangs")]
    assert len(told) == (0 if metrics else 1)
