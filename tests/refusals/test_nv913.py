"""NV913, engine stuck: for the stall timeout requests ran and no token came, or nothing was answered; it was ended.

The container engine is out of reach of unit tests and is made up; the front end that says the metrics is real.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nvllm.core.plan import CONTAINER_PORT
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.engine.engine import Engine
from nvllm.serve import health, startup, supervisor
from nvllm.serve.rundir import RunDirectory
from nvllm.serve.supervisor import Supervisor
from support.bless_world import FakeEngine, World, world
from support.plansamples import FrontEnd
from support.silent_fronts import WAYS, healthy_at

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

    def counted(host: str, port: int, stall_timeout: int) -> health.Look:
        nonlocal looks
        looks += 1
        if looks == 20:
            serving.run.ask_to_stop()
        return look(host, port, stall_timeout)

    look = health.look
    monkeypatch.setattr(health, "look", counted)
    serving.watch()
    assert looks >= 20
    told = [note for note in noted.notes if note.endswith("nvllm cannot see whether it hangs")]
    assert len(told) == (0 if metrics else 1)


def refused(serving: Supervisor) -> tuple[Refusal, float]:
    """Watch until the engine is ended; return the one refusal, and the seconds that it took."""
    began = time.monotonic()
    with pytest.raises(Refused) as caught:
        serving.watch()
    (refusal,) = caught.value.refusals
    return refusal, time.monotonic() - began


def test_one_that_answers_nothing_is_ended_within_twice_the_time(
    made: World, serving: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to be silent, all at once, since each takes a second; one list of all that end otherwise."""
    monkeypatch.setattr(health, "METRICS_INTERVAL", 0.1)
    wrong = []

    def watched(name: str) -> None:
        engine = FakeEngine()
        found = replace(made.found, engine=cast("Engine", engine))
        again = Supervisor(found, made.places, made.work.held_locks, Silent(), run=RunDirectory(tmp_path / name))
        again.plan = serving.plan
        again.start()
        with WAYS[name]() as port:
            again.plan = replace(serving.plan, port=port)
            refusal, took = refused(again)
        addresses = [f"http://127.0.0.1:{port}/{page}: " for page in ("metrics", "health")]
        right = (
            refusal.code == "NV913"
            and refusal.where == f"http://127.0.0.1:{port}/health"
            and refusal.expected == "an answer on /metrics or /health within 1 s"
            and all(address in refusal.found for address in addresses)
            and refusal.found.endswith("; the container has no address of its own")
            and engine.ended == ["killed", "removed"]
            and took < 2.0
        )
        if not right:
            wrong.append((name, refusal, took))

    with ThreadPoolExecutor(len(WAYS)) as pool:
        list(pool.map(watched, WAYS))
    assert wrong == []


def test_a_port_that_is_not_published_any_more_is_named(made: World, serving: Supervisor) -> None:
    """As after the death of docker-proxy: the container answers at its own address. Here that is another loopback."""
    own = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250}.2"  # a loopback address of this process alone
    assert made.engine.status is not None
    made.engine.status = replace(made.engine.status, address=own)
    with healthy_at(own, CONTAINER_PORT), WAYS["nobody listens"]() as port:
        serving.plan = replace(serving.plan, port=port)
        refusal, _ = refused(serving)
    assert refusal.found.endswith(" answers, so what publishes the port (docker-proxy) is dead or full")
    assert f"the container's own address {own}:{CONTAINER_PORT} answers" in refusal.found
    assert refusal.cure == f"nvllm serve {serving.plan.image} --profile {serving.plan.profile}"


def test_a_container_that_is_silent_everywhere(made: World, serving: Supervisor) -> None:
    assert made.engine.status is not None
    made.engine.status = replace(made.engine.status, address="127.0.0.2")
    with WAYS["stopped"]() as port:
        serving.plan = replace(serving.plan, port=port)
        refusal, _ = refused(serving)
    assert f"; the container's own address: http://127.0.0.2:{CONTAINER_PORT}/metrics: " in refusal.found


def test_a_supervisor_that_was_itself_stopped_does_not_blame_the_engine(
    serving: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is suspended for an hour after its first look, and the network comes back a look later than it does."""
    failures = iter([(), ("unreachable",), ()])
    asked = 0

    def looked(_host: str, _port: int, _stall_timeout: int) -> health.Look:
        nonlocal asked
        asked += 1
        if asked == 3:
            serving.run.ask_to_stop()
        return health.Look({}, next(failures, ()))

    clock = time.monotonic
    monkeypatch.setattr(health, "look", looked)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + (3600.0 if asked else 0.0))
    serving.watch()
    assert asked == 3
