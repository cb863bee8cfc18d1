"""Serving: a supervisor with an engine that is made up, and a front end that is real.

The engine is out of reach of unit tests, so `FakeEngine` has the methods that a supervisor calls, answers as
Docker does, and records what it was asked. The whole on a real engine is the end-to-end suite's.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvllm.cli import serve as cli_serve
from nvllm.core.paths import Places
from nvllm.core.plan import LaunchPlan, decode
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import GpuNeed
from nvllm.host import locks
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact, ContainerState
from nvllm.host.locks import HeldLocks, Holder, Key
from nvllm.image.engine import Engine
from nvllm.serve import detach, health, planner, startup, supervisor
from nvllm.serve.examine import Examination
from nvllm.serve.rundir import InstanceState, RunDirectory
from nvllm.serve.supervisor import Supervisor
from support.host_samples import HOST
from support.plansamples import GPUS, MODEL, PLAN, SPEC, FrontEnd, places, plan, wanted, with_profile

STARTED = (
    'nvllm.gate {"event": "passed", "seconds": 0.001}',
    "(Worker pid=34) INFO 11-20 23:43:15 [cpu_model_runner.py:131] Starting to load model /models/tiny...",
    "(Worker pid=34) INFO 11-20 23:43:15 [default_loader.py:430] Loading weights took 0.00 seconds",
    "(EngineCore pid=22) INFO 11-20 23:43:15 [kv_cache_utils.py:1869] GPU KV cache size: 52,428 tokens, Maximum",
    "(EngineCore pid=22) INFO [core.py:354] init engine (profile, create kv cache, warmup model) took 0.05 s",
    "(APIServer pid=1) INFO:     Application startup complete.",
)
ID = "4f" * 32
FINDING = {"where": "user", "expected": "1234:1235", "found": "0:0"}


def nothing() -> None:
    pass


def stamped(text: str) -> bytes:
    """Return TEXT as a line of the engine's log."""
    now = time.time_ns()
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
    return f"{seconds}.{now % 10**9:09}Z {text}\n".encode()


@dataclass
class FakeEngine:
    """An engine with at most one container, which is in the STATE that a test says."""

    chunks: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    status: ContainerState | None = None
    asked: list[str] = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)
    plan: LaunchPlan | None = None
    interrupted: bool = False
    """Whether the user presses Ctrl-C while the container is being started."""
    later: list[Callable[[], None]] = field(default_factory=list)
    """What happens, one by one, whenever the supervisor looks how the container is."""

    def says(self, *lines: str) -> None:
        for line in lines:
            self.chunks.put(stamped(line))

    def ends(self, exit_code: int, *, out_of_memory: bool = False) -> None:
        assert self.status is not None
        self.status = replace(self.status, status="exited", exit_code=exit_code, out_of_memory=out_of_memory)
        self.chunks.put(None)

    def vanishes(self) -> None:
        self.status = None
        self.chunks.put(None)

    # What a supervisor calls

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        self.asked.append("start")
        self.plan, self.labels = plan, labels
        self.status = ContainerState(ID, plan.instance, "running", None, False, labels, "")
        if self.interrupted:
            raise KeyboardInterrupt
        return ID

    def containers(self) -> tuple[ContainerFact, ...]:
        if self.status is None:
            return ()
        running = self.status.exit_code is None
        return (ContainerFact(self.status.name, self.labels, running, self.status.id),)

    def state(self, container_id: str) -> ContainerState | None:
        assert container_id == ID
        if self.later:
            self.later.pop(0)()
        return self.status

    def logs(self, container_id: str, *, follow: bool, tail: int | Literal["all"] = "all") -> Iterator[bytes]:
        assert (container_id, follow, tail) == (ID, True, "all")
        while (chunk := self.chunks.get()) is not None:
            yield chunk

    def stop(self, container_id: str, patience: int) -> None:
        self.asked.append("stop")
        self.vanishes()

    def kill(self, container_id: str) -> None:
        self.asked.append("kill")

    def remove(self, container_id: str) -> None:
        assert container_id == ID
        self.asked.append("remove")
        self.vanishes()


class Noted(Silent):
    """Progress that keeps what it is told, and can be the moment at which the user presses Ctrl-C."""

    def __init__(self, interrupt_at: str = "never") -> None:
        self.notes: list[str] = []
        self.interrupt_at = interrupt_at

    def note(self, text: str) -> None:
        self.notes.append(text)
        if self.interrupt_at in text:
            raise KeyboardInterrupt


@dataclass
class World:
    """A supervisor, and what is around it."""

    supervisor: Supervisor
    engine: FakeEngine
    front: FrontEnd
    run: RunDirectory

    def refused(self) -> Refusal:
        """Start, which must be refused, and return the one refusal."""
        (refusal,) = self.refusals()
        return refusal

    def refusals(self) -> tuple[Refusal, ...]:
        with pytest.raises(Refused) as caught:
            self.supervisor.start()
        return tuple(caught.value.refusals)

    def state(self) -> InstanceState:
        found = self.run.read_state()
        assert found is not None
        return found

    def evidence(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run.path / "evidence.jsonl").read_text().splitlines()]


def examination(of: LaunchPlan, engine: FakeEngine | None, *refusals: Refusal) -> Examination:
    return Examination(wanted().build, of, (MODEL,), (), refusals, cast("Engine | None", engine), HOST)


def world_of(where: Places, front: FrontEnd, taken: HeldLocks, progress: Progress, **changes: Any) -> World:
    engine = FakeEngine()
    patient = replace(PLAN.limits, start_timeout=30)  # no test waits so long, unless something is wrong
    of = replace(replace(PLAN, port=front.port, limits=patient), **changes)
    found = Supervisor(examination(of, engine), where, taken, progress)
    return World(found, engine, front, RunDirectory(where.runs / of.instance))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_POLL", 0.005)


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[HeldLocks]:
    holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve demo --profile eager", PLAN.instance)
    with locks.acquire_all(places(tmp_path).locks, supervisor.keys(PLAN), holder) as held:
        yield held


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def world(tmp_path: Path, front: FrontEnd, taken: HeldLocks, noted: Noted) -> World:
    return world_of(places(tmp_path), front, taken, noted)


# A start that succeeds


def test_a_start_until_a_real_generation_came_back(world: World, noted: Noted) -> None:
    world.engine.says(*STARTED)
    assert world.supervisor.start().tokens == 16
    assert world.engine.asked == ["start"]
    state = world.state()
    assert (state.stage, state.kv_tokens, state.container, state.supervisor) == ("ready", 52428, ID, os.getpid())
    assert [name for name, _ in state.phases] == ["gate", "import", "weights", "warm-up", "server", "first token"]
    assert state.ready is not None
    assert 0 <= state.ready - state.started < 60
    assert [one["event"] for one in world.evidence()] == ["started", *6 * ["phase"], "ready"]
    assert {one["instance"] for one in world.evidence()} == {PLAN.instance}
    assert [note.split()[2] for note in noted.notes] == ["gate", "import", "weights", "warm-up", "server", "first"]


def test_what_is_started_is_the_plan_with_our_labels(world: World) -> None:
    world.engine.says(*STARTED)
    world.supervisor.start()
    assert world.engine.plan == world.supervisor.plan
    assert world.engine.labels == {
        "nvllm.instance": PLAN.instance,
        "nvllm.image": "demo",
        "nvllm.profile": "eager",
        "nvllm.build-hash": PLAN.build_hash,
        "nvllm.serve-hash": PLAN.serve_hash,
        "nvllm.dev": "false",
    }


def test_what_is_mounted_lies_there_before_the_start(world: World) -> None:
    world.engine.says(*STARTED)
    world.supervisor.start()
    assert (world.run.mounted / "launch.json").read_bytes() == planner.expectations(world.supervisor.plan, [MODEL])
    assert sorted(os.listdir(world.run.mounted)) == ["drain", "launch.json", "zeroer"]
    assert decode(json.loads((world.run.path / "plan.json").read_text())) == world.supervisor.plan


def test_the_holder_of_the_locks_names_the_container(world: World, tmp_path: Path) -> None:
    world.engine.says(*STARTED)
    world.supervisor.start()
    held = locks.status(places(tmp_path).locks)
    assert {one.holder.container for one in held if one.holder is not None} == {ID}


def test_health_alone_is_not_ready(world: World) -> None:
    """The health page answers long before; nothing is asked of an engine that has not said that it serves."""
    world.engine.says(*STARTED[:-1])
    world.engine.later = [nothing, nothing, lambda: world.engine.says(STARTED[-1])]
    world.supervisor.start()
    assert len(world.front.asked) == 1


def test_an_engine_that_is_not_healthy_yet_is_waited_for(world: World) -> None:
    world.front.health = 503
    world.engine.says(*STARTED)

    def heal() -> None:
        world.front.health = 200

    world.engine.later = [nothing, nothing, nothing, heal]
    assert world.supervisor.start().tokens == 16


def test_the_log_is_kept_as_the_engine_wrote_it(world: World) -> None:
    world.engine.says(*STARTED)
    world.supervisor.start()
    lines = world.run.log.read_text().splitlines()
    assert [line.partition("Z ")[2] for line in lines] == list(STARTED)


def test_a_development_profile_is_marked_in_every_line_of_evidence(
    tmp_path: Path, front: FrontEnd, taken: HeldLocks
) -> None:
    world = world_of(places(tmp_path), front, taken, Silent(), dev=True)
    world.engine.says(*STARTED)
    world.supervisor.start()
    assert {one["dev"] for one in world.evidence()} == {True}
    assert world.state().dev
    assert world.engine.labels["nvllm.dev"] == "true"


# A start that fails


def test_a_gate_that_refuses(world: World) -> None:
    findings = [{"where": "/models/tiny/config.json", "expected": "sha256 aa", "found": "bb"}, FINDING]
    world.engine.says(f"nvllm.gate {json.dumps({'event': 'refused', 'findings': findings}, sort_keys=True)}")
    one, other = world.refusals()
    assert (one.code, other.code) == ("NV701", "NV701")
    assert one.where == f"container {PLAN.instance}: /models/tiny/config.json"
    assert (other.expected, other.found) == ("1234:1235", "0:0")
    assert one.cure == "nvllm doctor demo --profile eager"
    assert world.engine.asked == ["start", "kill", "remove"]
    assert (world.state().stage, world.state().reason) == ("failed", "NV701 gate refused; NV701 gate refused")


def test_a_report_of_the_gate_that_the_engine_cut_into_pieces(world: World) -> None:
    """Docker keeps lines of up to 16 KiB, and puts a time in front of each piece of a longer one."""
    findings = [{"where": f"/models/tiny/{n}", "expected": "a file", "found": "x" * 100} for n in range(300)]
    line = stamped(f"nvllm.gate {json.dumps({'event': 'refused', 'findings': findings}, sort_keys=True)}")
    stamp, _, text = line.partition(b" ")
    for begin in range(0, len(text), 16384):
        world.engine.chunks.put(stamp + b" " + text[begin : begin + 16384])
    refusals = world.refusals()
    assert len(refusals) == 300
    assert {refusal.found for refusal in refusals} == {"x" * 100}


def test_an_engine_that_ends(world: World) -> None:
    world.engine.says(*(f"line {number}" for number in range(30)))
    world.engine.chunks.put(stamped("ValueError: the last word").rstrip(b"\n"))
    world.engine.later = [lambda: world.engine.ends(1)]
    refusal = world.refused()
    assert (refusal.code, refusal.where) == ("NV703", f"container {PLAN.instance}")
    first, *last = refusal.found.splitlines()
    assert first == "exit status 1; its last lines:"
    assert last == [*(f"line {number}" for number in range(19, 30)), "ValueError: the last word"]
    assert refusal.cure == f"read {world.run.log}"
    assert world.engine.asked == ["start", "kill", "remove"]
    assert (world.state().stage, world.state().reason) == ("failed", "NV703 engine died")


def test_the_last_lines_may_come_after_the_news_of_the_end(world: World) -> None:
    """What the gate refuses is among them."""
    line = f"nvllm.gate {json.dumps({'event': 'refused', 'findings': [FINDING]}, sort_keys=True)}"

    def speaks() -> None:
        world.engine.says(line)
        world.engine.chunks.put(None)

    def ends() -> None:
        assert world.engine.status is not None
        world.engine.status = replace(world.engine.status, status="exited", exit_code=78)
        threading.Timer(0.1, speaks).start()

    world.engine.later = [ends]
    assert world.refused().code == "NV701"


@pytest.mark.parametrize(("exit_code", "out_of_memory"), [(137, True), (137, False), (1, True)])
def test_an_engine_that_was_killed(world: World, exit_code: int, out_of_memory: bool) -> None:
    world.engine.later = [nothing, lambda: world.engine.ends(exit_code, out_of_memory=out_of_memory)]
    assert world.refused().found.startswith(f"killed (exit status {exit_code}), memory limit 6.0 GiB; its last lines:")


def test_an_engine_whose_core_failed_is_not_waited_for(world: World) -> None:
    """It may hang for ever: its own words are the end."""
    world.engine.says(STARTED[0], "(EngineCore pid=22) ERROR 11-20 [core.py:1136] EngineCore failed to start.")
    refusal = world.refused()
    assert refusal.code == "NV703"
    assert refusal.found.startswith("(EngineCore pid=22) ERROR 11-20 [core.py:1136] EngineCore failed to start.")
    assert world.engine.asked == ["start", "kill", "remove"]


def test_a_start_that_takes_too_long_is_killed_and_not_asked_to_end(
    tmp_path: Path, front: FrontEnd, taken: HeldLocks
) -> None:
    """A worker that hangs ignores being asked."""
    world = world_of(places(tmp_path), front, taken, Silent(), limits=replace(PLAN.limits, start_timeout=0))
    world.engine.says(*STARTED[:3])
    refusal = world.refused()
    assert (refusal.code, refusal.expected) == ("NV702", "ready within 0 s")
    assert refusal.found.startswith("it got as far as: ")
    assert "limits.start-timeout" in refusal.cure
    assert world.engine.asked == ["start", "kill", "remove"]
    assert world.state().reason == "NV702 start timed out"


def test_a_start_that_takes_too_long_says_how_far_it_came(world: World) -> None:
    world.supervisor.plan = replace(world.supervisor.plan, limits=replace(PLAN.limits, start_timeout=1))
    world.engine.says(*STARTED[:3])
    said = world.refused().found
    assert [part.split()[0] for part in said.removeprefix("it got as far as: ").split(", ")] == [
        "gate",
        "import",
        "weights",
    ]


def test_an_engine_that_answers_without_a_generation(world: World) -> None:
    world.front.status = 500
    world.front.body = b"EngineCore encountered an issue."
    world.engine.says(*STARTED)
    refusal = world.refused()
    assert (refusal.code, refusal.where) == ("NV704", f"http://127.0.0.1:{world.front.port}/v1/completions")
    assert (refusal.expected, refusal.found) == ("16 generated tokens", "HTTP 500: EngineCore encountered an issue.")
    assert refusal.cure == f"read {world.run.log}"
    assert world.engine.asked == ["start", "kill", "remove"]
    assert world.state().reason == "NV704 not ready"


def test_an_engine_that_dies_at_its_first_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        world.engine.says("RuntimeError: initial_state dtype mismatch")
        world.engine.ends(1)
        raise health.NotReady("connection reset", final=False)

    monkeypatch.setattr(health, "generate", dies)
    world.engine.says(*STARTED)
    refusal = world.refused()
    assert refusal.code == "NV703"
    assert refusal.found.endswith("RuntimeError: initial_state dtype mismatch")


def test_an_interrupt_during_the_start(tmp_path: Path, front: FrontEnd, taken: HeldLocks) -> None:
    world = world_of(places(tmp_path), front, taken, Noted(interrupt_at="import"))
    world.engine.says(*STARTED)
    with pytest.raises(KeyboardInterrupt):
        world.supervisor.start()
    assert world.engine.asked == ["start", "kill", "remove"]
    assert (world.state().stage, world.state().reason) == ("failed", "interrupted")


def test_an_interrupt_while_the_engine_starts_the_container(world: World) -> None:
    """Nobody has told us the container's id then; it is found by our labels."""
    world.engine.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        world.supervisor.start()
    assert world.engine.asked == ["start", "kill", "remove"]
    assert (world.state().stage, world.state().reason) == ("failed", "interrupted")


def test_an_interrupt_never_ends_a_container_that_is_not_ours(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.engine.interrupted = True
    other = ContainerFact(PLAN.instance, {INSTANCE_LABEL: PLAN.instance, "nvllm.serve-hash": "0" * 64}, True, "aa" * 32)
    monkeypatch.setattr(world.engine, "containers", lambda: (other,))
    with pytest.raises(KeyboardInterrupt):
        world.supervisor.start()
    assert world.engine.asked == ["start"]


def test_an_engine_that_cannot_start_the_container(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> str:
        raise Refused([Refusal("NV703", "docker engine", "a container that starts", "no space left", "nvllm gc")])

    monkeypatch.setattr(world.engine, "start", refuses)
    assert world.refused().found == "no space left"
    assert (world.state().stage, world.state().reason, world.state().container) == ("failed", "NV703 engine died", "")
    assert world.engine.asked == []


# The log


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 700), max_size=12))
def test_lines_that_are_torn_across_chunks_are_whole_again(world: World, cuts: list[int]) -> None:
    data = b"".join(f"2026-11-20T23:42:5{n}.187249491Z {text}\n".encode() for n, text in enumerate(STARTED))
    chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    places_ = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for begin, end in itertools.pairwise(places_):
        chunks.put(data[begin:end])
    chunks.put(None)
    world.engine.chunks = chunks
    world.supervisor.container = ID
    world.supervisor._read_log()
    read = []
    while not world.supervisor._lines.empty():
        read.append(world.supervisor._lines.get())
    assert read == data.splitlines()


def test_bytes_that_are_no_text_are_kept_and_do_no_harm(world: World) -> None:
    world.engine.chunks.put(b"2026-11-20T23:42:51.1Z \xff\xfe\x00 \x1b[2J\n")
    world.engine.chunks.put(b"no time in front\n")
    world.engine.says(*STARTED)
    world.supervisor.start()
    assert b"\xff\xfe\x00 \x1b[2J\nno time in front\n" in world.run.log.read_bytes()


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


def test_a_state_that_cannot_be_written_at_the_end(world: World) -> None:
    made_ready(world)
    world.run.ask_to_stop()
    asked, stopped = world.run.path, world.run.path.with_name("stopped")

    def gone() -> None:
        asked.rename(stopped)

    world.engine.later = [nothing, gone]
    world.engine.stop = lambda *_: (gone(), FakeEngine.stop(world.engine, ID, 0))  # type: ignore[assignment,func-returns-value]
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


def test_an_engine_that_falls_silent_leaves_what_status_and_stop_know(world: World) -> None:
    """The container may run on; nobody can end it now."""
    made_ready(world)
    silent = Refused([Refusal("NV510", "unix:///socket", "an engine", "timed out", "docker info")])

    def falls_silent(*_: object) -> None:
        raise silent

    world.engine.later = [falls_silent]
    world.engine.kill = falls_silent  # type: ignore[method-assign]
    with pytest.raises(Refused) as caught:
        world.supervisor.watch()
    assert [one.code for one in caught.value.refusals] == ["NV510"]
    assert world.state().stage == "ready"
    assert cli_serve._stage(world.state(), True) == "ready"


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
    with supervisor.hold_locks(examination(PLAN, None), where, "nvllm serve demo --profile eager") as taken:
        assert set(taken.keys) == set(supervisor.keys(PLAN))
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


# Stopping


def running(engine: FakeEngine, of: LaunchPlan = PLAN) -> FakeEngine:
    engine.start(of, startup.labels(of))
    engine.asked.clear()
    return engine


def stop(engine: FakeEngine, where: Places, name: str = PLAN.instance) -> str:
    return supervisor.stop(cast("Engine", engine), where, name)


def test_stopping_one_whose_supervisor_is_gone(tmp_path: Path) -> None:
    engine, where = running(FakeEngine()), places(tmp_path)
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
    engine, where = running(FakeEngine()), places(tmp_path)
    run = RunDirectory(where.runs / PLAN.instance)
    run.prepare({}, b"{}", ())
    (run.path / "stop").symlink_to(tmp_path / "no such directory" / "stop")
    with pytest.raises(Refused) as caught:
        stop(engine, where)
    assert [one.code for one in caught.value.refusals] == ["NV920"]
    assert engine.asked == ["stop"]


def test_stopping_one_of_which_only_the_container_is_left(tmp_path: Path) -> None:
    engine = running(FakeEngine())
    assert stop(engine, places(tmp_path)) == ID
    assert engine.asked == ["stop"]


def test_stopping_what_is_not_there_names_what_is(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        stop(running(FakeEngine()), places(tmp_path), "nvllm-demo-other")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.expected) == ("NV107", f"an instance: {PLAN.instance}")
    assert (refusal.found, refusal.cure) == ("nvllm-demo-other", "nvllm status")


def test_a_container_that_is_not_ours_is_not_stopped(tmp_path: Path) -> None:
    engine = running(FakeEngine())
    engine.labels = {}
    with pytest.raises(Refused) as caught:
        stop(engine, places(tmp_path))
    assert caught.value.refusals[0].expected == "an instance: nothing is being served"
    assert engine.asked == []


# In the background. The supervisor is a small program that stands for the real one, which needs an engine.

SPEAKS = """
import json, os, sys, time
def say(text):
    print(text, file=sys.stderr, flush=True)
say("    0.3 s  gate (0.3 s)")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
say("   24.0 s  import (23.7 s)")
print(json.dumps({"ok": True, "result": {"instance": "i", "inner": {"a": []}}}, indent=2), flush=True)
time.sleep(60)
"""


def program(text: str, *args: str) -> list[str]:
    return [sys.executable, "-c", text, *args]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "nvllm-demo-eager.log"


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Collect the processes that a test leaves behind, and end them."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def test_what_a_supervisor_says_is_shown_until_it_is_ready(
    log: Path, noted: Noted, children: list[subprocess.Popen[bytes]]
) -> None:
    document, child = detach.followed(program(SPEAKS, os.devnull), log, noted)
    children.append(child)
    assert document == {"ok": True, "result": {"instance": "i", "inner": {"a": []}}}
    assert noted.notes == ["    0.3 s  gate (0.3 s)", "   24.0 s  import (23.7 s)"]
    assert child.poll() is None  # and it goes on
    assert os.getsid(child.pid) == child.pid  # in a session of its own: no terminal ends it
    assert log.read_text().splitlines() == noted.notes


def test_it_is_shown_while_it_is_said(log: Path, tmp_path: Path, children: list[subprocess.Popen[bytes]]) -> None:
    """The program goes on only when somebody has seen its first line."""

    class Marking(Noted):
        def note(self, text: str) -> None:
            super().note(text)
            (tmp_path / "seen").touch()

    marking = Marking()
    document, child = detach.followed(program(SPEAKS, str(tmp_path / "seen")), log, marking)
    children.append(child)
    assert document["ok"]
    assert len(marking.notes) == 2


def test_what_was_said_before_is_kept_and_not_shown_again(
    log: Path, noted: Noted, children: list[subprocess.Popen[bytes]]
) -> None:
    log.write_text("of an earlier start\n")
    _, child = detach.followed(program(SPEAKS, os.devnull), log, noted)
    children.append(child)
    assert len(noted.notes) == 2
    assert log.read_text().startswith("of an earlier start\n    0.3 s")


def test_a_supervisor_that_ends_without_a_result(log: Path, noted: Noted) -> None:
    text = "import sys; print('Traceback', file=sys.stderr); print('{\"torn\": '); sys.exit(7)"
    document, child = detach.followed(program(text), log, noted)
    assert (document, child.wait(), noted.notes) == ({}, 7, ["Traceback"])


def test_a_result_is_read_whatever_pieces_it_comes_in(
    log: Path, noted: Noted, children: list[subprocess.Popen[bytes]]
) -> None:
    text = """
import sys, time
for part in ('{"ok": true,\\n', '"result": {\\n}\\n', '}', '\\n'):
    print(part, end="", flush=True)
    time.sleep(0.05)
time.sleep(60)
"""
    document, child = detach.followed(program(text), log, noted)
    children.append(child)
    assert document == {"ok": True, "result": {}}


def test_lines_are_shown_when_they_are_whole(log: Path, noted: Noted) -> None:
    with log.open("ab") as stream, log.open("rb") as written:
        for part, shown in [(b"one\ntw", ["one"]), (b"", ["one"]), (b"o\n\xff\n", ["one", "two", "\ufffd"])]:
            stream.write(part)
            stream.flush()
            detach._show_lines(written, noted)
            assert noted.notes == shown


WAITS = """
import signal, sys, time
def end(*_):
    time.sleep(0.3)
    open(sys.argv[1], "w").write("cleaned up")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
print("waiting", file=sys.stderr, flush=True)
time.sleep(60)
"""


def test_an_interrupt_ends_the_supervisor_and_waits_for_it(log: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(KeyboardInterrupt):
        detach.followed(program(WAITS, str(mark)), log, Noted(interrupt_at="waiting"))
    assert mark.read_text() == "cleaned up"
