"""Ending: `nvllm stop` in every state that an instance can be in, and orphans. The engine is made up."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nvllm.core.paths import Places
from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import Refusal, Refused
from nvllm.engine.engine import Engine
from nvllm.host import locks
from nvllm.host.facts import HOME_LABEL, RUN_LABEL
from nvllm.host.locks import Holder, Key
from nvllm.serve import startup, stopping
from nvllm.serve.rundir import InstanceState, RunDirectory, Stage
from nvllm.serve.stopping import Orphan
from support.plansamples import PLAN, places
from support.serve_world import ID, FakeEngine

STATE = InstanceState(
    PLAN.instance, "demo", "eager", False, "ready", "b", "c", PLAN.port, 1, ID, 1.0, ready=2.0, kv_tokens=3, drain=7
)
HOLDER = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve demo --profile eager", PLAN.instance)


def kept(where: Places, stage: Stage = "ready") -> RunDirectory:
    """Return the run directory of the instance at STAGE."""
    run = RunDirectory(where.runs / PLAN.instance)
    run.prepare({}, b"{}", ())
    run.write_state(replace(STATE, stage=stage))
    return run


def ended(run: RunDirectory) -> tuple[str, str]:
    state = run.read_state()
    assert state is not None
    return state.stage, state.reason


def running(engine: FakeEngine, where: Places, of: LaunchPlan = PLAN) -> FakeEngine:
    engine.start(of, startup.labels(of, where.run(of.instance)))
    engine.asked.clear()
    return engine


def stop(engine: FakeEngine, where: Places, name: str = PLAN.instance) -> str:
    return stopping.stop(cast("Engine", engine), where, name)


def test_stopping_one_whose_supervisor_is_gone(tmp_path: Path) -> None:
    where = places(tmp_path)
    engine = running(FakeEngine(), where)
    run = RunDirectory(where.runs / PLAN.instance)
    run.prepare({}, b"{}", ())
    run.write_state(
        InstanceState(
            PLAN.instance, "demo", "eager", False, "ready", "b", "c", 8000, 1, ID, 1.0, ready=2.0, kv_tokens=3
        )
    )
    assert stop(engine, where) == ID
    assert engine.asked == ["stop"]
    assert run.asked_to_stop
    state = run.read_state()
    assert state is not None
    assert (state.stage, state.reason) == ("stopped", "stopped; its supervisor was gone")


def test_a_stop_on_a_full_disk_stops_all_the_same(tmp_path: Path) -> None:
    where = places(tmp_path)
    engine = running(FakeEngine(), where)
    run = RunDirectory(where.runs / PLAN.instance)
    run.prepare({}, b"{}", ())
    (run.path / "stop").symlink_to(tmp_path / "no such directory" / "stop")
    with pytest.raises(Refused) as caught:
        stop(engine, where)
    assert [one.code for one in caught.value.refusals] == ["NV920"]
    assert engine.asked == ["stop"]


def test_stopping_one_of_which_only_the_container_is_left(tmp_path: Path) -> None:
    engine = running(FakeEngine(), places(tmp_path))
    assert stop(engine, places(tmp_path)) == ID
    assert engine.asked == ["stop"]


def test_stopping_what_is_not_there_names_what_is(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        stop(running(FakeEngine(), places(tmp_path)), places(tmp_path), "nvllm-demo-other")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.expected) == ("NV107", f"an instance: {PLAN.instance}")
    assert (refusal.found, refusal.cure) == ("nvllm-demo-other", "nvllm status")


def test_a_container_that_is_not_ours_is_not_stopped(tmp_path: Path) -> None:
    engine = running(FakeEngine(), places(tmp_path))
    engine.labels = {}
    with pytest.raises(Refused) as caught:
        stop(engine, places(tmp_path))
    assert caught.value.refusals[0].expected == "an instance: nothing is being served"
    assert engine.asked == []


def test_requests_get_the_time_to_finish_that_the_instance_was_started_with(tmp_path: Path) -> None:
    where = places(tmp_path)
    engine = running(FakeEngine(), where)
    kept(where)
    stop(engine, where)
    assert engine.patience == [startup.STOP_PATIENCE + STATE.drain]


@pytest.mark.parametrize("stage", ["starting", "ready", "restarting"])
def test_one_whose_container_vanished_is_recorded_as_stopped(tmp_path: Path, stage: Stage) -> None:
    where = places(tmp_path)
    run = kept(where, stage)
    assert stop(FakeEngine(), where) == ID
    assert ended(run) == ("stopped", "stopped; its container was gone")
    with pytest.raises(Refused) as caught:
        stop(FakeEngine(), where)
    assert [one.code for one in caught.value.refusals] == ["NV107"]


def test_one_between_two_engines_is_asked_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = places(tmp_path)
    run = kept(where, "restarting")
    held_locks = locks.acquire_all(where.locks, [Key("port", "8000")], HOLDER)

    def releases(_seconds: float) -> None:
        if run.asked_to_stop:
            held_locks.release()

    monkeypatch.setattr(time, "sleep", releases)
    assert stop(FakeEngine(), where) == ID
    assert ended(run)[0] == "stopped"


def test_all_are_those_of_this_state_directory(tmp_path: Path) -> None:
    where = places(tmp_path)
    engine = cast("Engine", running(FakeEngine(), where))
    assert stopping.unended(engine, where) == (), "a container without a state"
    for stage, listed in (("stopped", True), ("failed", True), ("ready", True)):
        kept(where, cast("Stage", stage))
        assert (PLAN.instance in stopping.unended(engine, where)) == listed, stage
    running(cast("FakeEngine", engine), places(tmp_path / "other"))
    kept(where, "stopped")
    assert stopping.unended(engine, where) == (), "it is another home's"


def test_one_of_another_home_is_left_to_it(tmp_path: Path) -> None:
    """Also if this home has an instance of that name that ended: its state says that it ended."""
    where, other = places(tmp_path), Places(tmp_path / "her home/cache", tmp_path / "her home/state")
    engine = running(FakeEngine(), other)
    engine.labels = {**engine.labels, HOME_LABEL: other.id}
    for begin in (lambda: None, lambda: kept(where, "stopped")):
        begin()
        with pytest.raises(Refused) as caught:
            stop(engine, where)
        (refusal,) = caught.value.refusals
        assert (refusal.code, refusal.found) == ("NV921", "one of another home")
        assert refusal.cure == f"NVLLM_HOME='{tmp_path}/her home' nvllm stop {PLAN.instance}"
    assert engine.asked == []
    assert stop(engine, other) == ID


# Orphans


def orphan(engine: FakeEngine, where: Places) -> Orphan | None:
    return stopping.orphan(cast("Engine", engine), where, PLAN.instance)


def test_what_is_an_orphan(tmp_path: Path) -> None:
    where = places(tmp_path)
    engine = running(FakeEngine(), where)
    assert orphan(engine, where) == Orphan(ID, None), "killed before it wrote a state"
    kept(where)
    assert orphan(engine, where) == Orphan(ID, STATE)
    with locks.acquire_all(where.locks, [Key("port", "9000")], HOLDER):
        assert orphan(engine, where) is None, "it is supervised, whatever its port is"
    engine.labels = {**engine.labels, RUN_LABEL: "/another/home/runs/it"}
    assert orphan(engine, where) is None, "its supervisor would hold its locks elsewhere"
    engine.labels = {}
    assert orphan(engine, where) is None, "nvllm did not create it"
    assert orphan(FakeEngine(), where) is None, "there is none"


def test_the_end_of_an_orphan(tmp_path: Path) -> None:
    where = places(tmp_path)
    engine, run = running(FakeEngine(), where), kept(where)
    stopping.end_orphan(cast("Engine", engine), where, PLAN.instance, Orphan(ID, STATE))
    assert (engine.asked, engine.patience) == (["stop"], [startup.STOP_PATIENCE + STATE.drain])
    assert ended(run) == ("stopped", "ended by the next serve; its supervisor was gone")


def test_what_ends_with_an_orphan() -> None:
    left = Orphan(ID, STATE)
    codes = ("NV505", "NV506", "NV507", "NV508", "NV509")
    explained = {code for code in codes if left.explains(Refusal(code, "", "", "", ""), PLAN)}
    assert explained == {"NV505", "NV507", "NV508"}
    assert not left.explains(Refusal("NV507", "", "", "", ""), replace(PLAN, port=PLAN.port + 1))
