"""Serving: the life of an engine that is ready, its end, its locks, and stopping it. The engine is made up.

The whole on a real engine is the end-to-end suite's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.paths import Places
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import GpuNeed
from nvllm.host import locks
from nvllm.host.locks import HeldLocks, Key
from nvllm.serve import health, instances, owners, supervisor
from nvllm.serve.examination import Examination
from support.plansamples import GPUS, PLAN, SPEC, places, plan, project, with_profile
from support.serve_world import (
    FINDING,
    STARTED,
    FakeEngine,
    World,
    examination,
    nothing,
)

# The life that follows


def made_ready(world: World) -> World:
    world.engine.says(*STARTED)
    world.supervisor.start()
    return world


def test_a_stop_that_is_asked_for(world: World) -> None:
    made_ready(world).run.ask_to_stop()
    world.supervisor.watch()
    assert world.engine.asked == ["start", "stop"]
    assert (world.state().stage, world.state().reason) == ("stopped", "asked to stop")
    assert world.state().ready is not None  # that it was ready stays true
    assert world.evidence()[-1]["event"] == "stopped"


def test_a_stop_that_is_asked_for_while_the_container_goes_away(world: World) -> None:
    made_ready(world).run.ask_to_stop()
    world.engine.vanishes()
    world.supervisor.watch()
    assert world.state().stage == "stopped"


def test_a_container_that_disappears(world: World) -> None:
    made_ready(world).engine.vanishes()
    with pytest.raises(Refused) as caught:
        world.supervisor.watch()
    (refusal,) = caught.value.refusals
    assert refusal.code == "NV703"
    assert refusal.found.startswith("another process removed the container; its last lines:\n")
    assert world.state().stage == "failed"
    assert world.state().reason.startswith("another process removed the container")


def test_an_engine_that_ends_by_itself(world: World) -> None:
    made_ready(world).engine.says("Segmentation fault")
    world.engine.ends(139)
    with pytest.raises(Refused) as caught:
        world.supervisor.watch()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found.splitlines()[0]) == ("NV703", "exit status 139; its last lines:")
    assert world.engine.asked == ["start", "kill", "remove"]


def test_an_interrupt_of_one_that_serves_asks_it_to_end(world: World) -> None:
    made_ready(world).supervisor.end("stopped", "interrupted")
    assert world.engine.asked == ["start", "stop"]
    assert (world.state().stage, world.state().reason) == ("stopped", "interrupted")


def test_one_that_is_asked_to_stop_before_it_is_ready_was_not_removed_by_somebody_else(world: World) -> None:
    def stops() -> None:
        world.run.ask_to_stop()
        world.engine.vanishes()

    world.engine.later = [nothing, stops]
    assert world.refused().found.startswith("it was asked to stop; its last lines:")


# Whatever ends the supervision ends the container first


def full(path: Path) -> None:
    """Let PATH be a file that takes nothing: what is written to it finds no room, as on a full disk."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/full")


@pytest.mark.parametrize("name", ["engine.log", "evidence.jsonl"])
def test_a_disk_that_is_full_while_it_serves(world: World, name: str) -> None:
    """Nobody would supervise it any more, and its locks would be free."""
    made_ready(world)
    full(world.run.path / name)
    world.engine.says("a line that finds no room")
    with pytest.raises(Refused) as caught:
        world.supervisor.watch()
    said = {(one.code, one.where, one.found) for one in caught.value.refusals}
    assert said == {("NV920", str(world.run.path / name), "No space left on device")}
    assert world.engine.asked == ["start", "kill", "remove"]
    assert (world.state().stage, world.state().reason) == ("failed", "No space left on device")


def test_a_state_that_cannot_be_written_at_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made_ready(world)
    world.run.ask_to_stop()
    asked, stopped = world.run.path, world.run.path.with_name("stopped")

    def gone() -> None:
        asked.rename(stopped)

    def stop(container_id: str, seconds: int) -> None:
        gone()
        FakeEngine.stop(world.engine, container_id, seconds)

    world.engine.later = [nothing, gone]
    monkeypatch.setattr(world.engine, "stop", stop)
    with pytest.raises(Refused) as caught:
        world.supervisor.watch()
    assert {one.code for one in caught.value.refusals} == {"NV920"}
    assert {Path(one.where).name for one in caught.value.refusals} == {"engine.log", "evidence.jsonl", "state.json"}
    assert world.engine.asked == ["start", "stop"]


@pytest.mark.parametrize("name", ["engine.log", "evidence.jsonl"])
def test_a_disk_that_is_full_during_the_start(world: World, name: str) -> None:
    world.engine.says(*STARTED[:-1])
    world.engine.later = [lambda: full(world.run.path / name), lambda: world.engine.says(STARTED[-1])]
    assert {one.code for one in world.refusals()} == {"NV920"}
    assert world.engine.asked == ["start", "kill", "remove"]
    assert world.state().stage == "failed"


def test_why_an_engine_died_is_said_also_where_it_cannot_be_written(world: World) -> None:
    """What the gate refuses is in the log, and is read from there though the log cannot be kept."""

    def dies() -> None:
        full(world.run.log)
        findings = {"event": "refused", "findings": [FINDING]}
        world.engine.says(f"nvllm.gate {json.dumps(findings, sort_keys=True)}")

    world.engine.later = [dies, nothing, nothing]
    assert world.refused().code == "NV701"
    assert world.engine.asked == ["start", "kill", "remove"]


@pytest.mark.parametrize(
    ("error", "stage", "reason"),
    [
        (KeyboardInterrupt(), "stopped", "interrupted"),
        (BrokenPipeError(), "stopped", "the reader of its output has gone"),
        (OSError(28, "No space left on device"), "failed", "OSError"),
        (ZeroDivisionError(), "failed", "ZeroDivisionError"),
    ],
)
def test_what_ends_it_when_it_is_announced(world: World, error: BaseException, stage: str, reason: str) -> None:
    def announce(_: health.Generation) -> None:
        raise error

    world.engine.says(*STARTED)
    with pytest.raises(type(error)) as caught:
        world.supervisor.serve(announce)
    assert caught.value is error
    assert world.engine.asked == ["start", "stop"] if stage == "stopped" else ["start", "kill", "remove"]
    assert (world.state().stage, world.state().reason) == (stage, reason)


def test_a_run_directory_that_is_not_ours_is_left_alone(world: World) -> None:
    world.run.path.parent.mkdir(parents=True)
    world.run.path.parent.chmod(0o777)
    with pytest.raises(Refused) as caught:
        world.supervisor.serve(lambda _: pytest.fail("it was never ready"))
    assert [one.code for one in caught.value.refusals] == ["NV513"]
    assert list(world.run.path.parent.iterdir()) == []


def test_a_start_that_fails_ends_once(world: World) -> None:
    world.engine.later = [lambda: world.engine.ends(1)]
    with pytest.raises(Refused):
        world.supervisor.serve(lambda _: pytest.fail("it was never ready"))
    assert world.engine.asked == ["start", "kill", "remove"]
    assert world.state().reason == "NV703 engine died"


def test_an_engine_that_falls_silent_leaves_what_status_and_stop_know(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container may run on; nobody can end it now."""
    made_ready(world)
    silent = Refused([Refusal("NV510", "unix:///socket", "an engine", "timed out", "docker info")])

    def falls_silent(*_: object) -> None:
        raise silent

    world.engine.later = [falls_silent]
    monkeypatch.setattr(world.engine, "kill", falls_silent)
    with pytest.raises(Refused) as caught:
        world.supervisor.watch()
    assert [one.code for one in caught.value.refusals] == ["NV510"]
    assert world.state().stage == "ready"
    assert instances.current_stage(world.state(), running=True, supervised=False) == "ready"


# Locks


def held_refusals(of: Examination, where: Places) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught, supervisor.hold_locks(of, where, "nvllm serve demo"):
        pytest.fail("nothing is held where something is refused")
    return [(refusal.code, refusal.where) for refusal in caught.value.refusals]


PORT_TAKEN = Refusal("NV507", "127.0.0.1:8000", "a free port", "pid 1 listening", "stop it")
RUNS = Refusal("NV508", f"docker engine: container {PLAN.instance}", "not served yet", "container 4f running", "stop")
MEMORY = Refusal("NV505", "/proc/meminfo", "3 GiB", "1 GiB", "stop something")


def test_what_a_serve_locks() -> None:
    assert supervisor.keys(PLAN) == [Key("serve", PLAN.serve_hash), Key("port", "8000")]
    spec = with_profile(SPEC, gpu=GpuNeed(("12.1",), "580.1", 2))
    assert supervisor.keys(plan(spec, gpus=GPUS))[2:] == [Key("gpu", "GPU-6f1c"), Key("gpu", "GPU-77aa")]


def test_locks_are_held_as_long_as_the_context_lasts(tmp_path: Path) -> None:
    where = places(tmp_path)
    with supervisor.hold_locks(examination(PLAN, None), where, "nvllm serve demo --profile eager"):
        assert {one.key for one in locks.status(where.locks)} == set(supervisor.keys(PLAN))
        (one, _) = locks.status(where.locks)
        assert one.holder is not None
        assert (one.holder.command, one.holder.instance) == ("nvllm serve demo --profile eager", PLAN.instance)
    assert locks.status(where.locks) == ()


def test_what_was_refused_is_refused_and_nothing_stays_held(tmp_path: Path) -> None:
    where = places(tmp_path)
    assert held_refusals(examination(PLAN, None, MEMORY, PORT_TAKEN), where) == [
        ("NV505", "/proc/meminfo"),
        ("NV507", "127.0.0.1:8000"),
    ]
    assert locks.status(where.locks) == ()


def test_held_locks_are_refused_together_with_everything_else(tmp_path: Path, taken: HeldLocks) -> None:
    """That the same server's port and container are there adds nothing."""
    where = places(tmp_path)
    assert held_refusals(examination(PLAN, None, MEMORY, PORT_TAKEN, RUNS), where) == [
        ("NV505", "/proc/meminfo"),
        ("NV508", f"{where.locks}/port-8000.lock"),
        ("NV508", f"{where.locks}/serve-{PLAN.serve_hash}.lock"),
    ]


def test_the_cure_of_a_lock_that_another_project_holds_names_that_project(tmp_path: Path, taken: HeldLocks) -> None:
    """`nvllm stop` refuses another project's instance (NV921)."""

    def cures() -> set[str]:
        with pytest.raises(Refused) as caught, supervisor.hold_locks(examination(mine, None), where, "nvllm serve"):
            pytest.fail("nothing is held where something is refused")
        return {refusal.cure for refusal in caught.value.refusals}

    where, mine = places(tmp_path), replace(PLAN, instance=f"{PLAN.instance}-mine")
    here, there = project(tmp_path / "here"), project(tmp_path / "there")
    assert cures() == {f"nvllm stop {PLAN.instance}"}
    owners.claim(there, where, PLAN.instance)
    assert cures() == {f"nvllm --project {there.root} stop {PLAN.instance}"}
    owners.claim(here, where, mine.instance)
    assert cures() == {f"nvllm --project {there.root} stop {PLAN.instance}"}
    owners.release(there, where, PLAN.instance)
    owners.claim(here, where, PLAN.instance)
    assert cures() == {f"nvllm stop {PLAN.instance}"}


def test_a_port_that_somebody_else_took_is_said_beside_a_held_serve_hash(tmp_path: Path, taken: HeldLocks) -> None:
    where = places(tmp_path)
    other = replace(PLAN, port=8001)
    taken_too = replace(PORT_TAKEN, where="127.0.0.1:8001")
    assert held_refusals(examination(other, None, taken_too), where) == [
        ("NV507", "127.0.0.1:8001"),
        ("NV508", f"{where.locks}/serve-{PLAN.serve_hash}.lock"),
    ]


def test_a_place_without_locks_is_refused_once(tmp_path: Path) -> None:
    where = places(tmp_path)
    where.locks.mkdir(parents=True)
    where.locks.chmod(0o777)
    seen = Refusal("NV513", str(where.locks), "a directory in which flock works", "mode 0777", "set NVLLM_HOME")
    assert held_refusals(examination(PLAN, None, seen, PORT_TAKEN), where) == [
        ("NV507", "127.0.0.1:8000"),
        ("NV513", str(where.locks)),
    ]
