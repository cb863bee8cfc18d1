"""A start: until a real generation came back, or the refusal that says why none did. The engine is made up."""

from __future__ import annotations

import itertools
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvllm.core.plan import decode
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.host import locks
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact
from nvllm.host.locks import HeldLocks
from nvllm.serve import health, planner, startup
from support.plansamples import MODEL, PLAN, FrontEnd, places
from support.rows import each_row
from support.serve_world import (
    FINDING,
    ID,
    STARTED,
    Noted,
    World,
    nothing,
    stamped,
    world_of,
)

MADE = {"arguments": "x_ptr: *bf16", "key": "KEY", "name": "zero", "requests": []}
EVIDENCE = (
    'nvllm.gate {"event": "passed", "seconds": 0.001}',
    "(EngineCore pid=75) nvllm.kernels miss key=KEY name=zero.json",
    f"(EngineCore pid=75) nvllm.kernels compiled {json.dumps(MADE, sort_keys=True)}",
    "(EngineCore pid=75) INFO 11-20 10:00:20 [sentinels.py:48] nvllm.sentinel name=page-zeroer count=100",
)

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
        "nvllm.run": str(world.run.path),
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
    findings = [{"where": f"/models/tiny/{n}", "expected": "a file", "found": f"{n:0100}"} for n in range(300)]
    line = stamped(f"nvllm.gate {json.dumps({'event': 'refused', 'findings': findings}, sort_keys=True)}")
    stamp, _, text = line.partition(b" ")
    for begin in range(0, len(text), 16384):
        world.engine.chunks.put(stamp + b" " + text[begin : begin + 16384])
    refusals = world.refusals()
    assert len(refusals) == 300
    assert {refusal.found for refusal in refusals} == {f"{n:0100}" for n in range(300)}


def test_an_engine_that_ends(world: World) -> None:
    world.engine.says(*(f"line {number}" for number in range(30)))
    world.engine.chunks.put(stamped("ValueError: the last word").rstrip(b"\n"))
    world.engine.later = [lambda: world.engine.ends(1)]
    refusal = world.refused()
    assert (refusal.code, refusal.where) == ("NV703", f"container {PLAN.instance}")
    first, *last = refusal.found.splitlines()
    assert first == "exit status 1; its last lines:"
    assert last == [*(f"line {number}" for number in range(19, 30)), "ValueError: the last word"]
    assert refusal.cure == f"less {world.run.log}"
    assert world.engine.asked == ["start", "kill", "remove"]
    assert (world.state().stage, world.state().reason) == ("failed", "NV703 engine died")


@each_row(
    ("lines", "last"),
    [
        (["ValueError: the last word", *EVIDENCE * 20], ["ValueError: the last word"]),
        ([*EVIDENCE, "ValueError", *EVIDENCE * 20, "the last word"], ["ValueError", "the last word"]),
        ([*EVIDENCE * 20], [*EVIDENCE * 20][-12:]),
    ],
)
def test_the_last_lines_are_those_of_the_engine_and_not_evidence_that_nvllm_has_it_write(
    tmp_path: Path, front: FrontEnd, taken: HeldLocks, lines: list[str], last: list[str]
) -> None:
    world = world_of(places(tmp_path), front, taken, Silent())
    world.engine.says(*lines)
    world.engine.later = [lambda: world.engine.ends(1)]
    assert world.refused().found.splitlines()[1:] == last
    assert world.run.log.read_text().count("nvllm.") == sum("nvllm." in line for line in lines), "the log has all"


def test_the_last_lines_may_come_after_the_news_of_the_end(world: World) -> None:
    """What the gate refuses is among them."""
    line = f"nvllm.gate {json.dumps({'event': 'refused', 'findings': [FINDING]}, sort_keys=True)}"

    def speaks() -> None:
        world.engine.says(line)
        world.engine.chunks.put(None)

    def ends() -> None:
        assert world.engine.status is not None
        world.engine.status = replace(world.engine.status, exit_code=78)
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
    assert (refusal.code, refusal.expected) == ("NV702", "ready within 0 s, the profile's limits.start-timeout")
    assert refusal.found.startswith("it got as far as: ")
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
    assert refusal.cure == f"less {world.run.log}"
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


def test_a_second_interrupt_while_the_engine_stops_ends_it_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        world.engine.asked.append("stop")
        raise KeyboardInterrupt

    monkeypatch.setattr(world.engine, "stop", stop)
    world.engine.says(*STARTED)
    world.supervisor.start()
    with pytest.raises(KeyboardInterrupt):
        world.supervisor.fail(KeyboardInterrupt(), "stopped", "interrupted")
    assert world.engine.asked == ["start", "stop", "kill", "remove"]
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
def test_lines_that_are_torn_across_chunks_are_whole_again(cuts: list[int]) -> None:
    data = b"".join(f"2026-11-20T23:42:5{n}.187249491Z {text}\n".encode() for n, text in enumerate(STARTED))
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    assert list(startup.whole_lines(data[begin:end] for begin, end in itertools.pairwise(ends))) == data.splitlines()


def test_a_line_without_end_comes_in_parts() -> None:
    piece = b"2026-11-20T23:42:51.1Z " + b"x" * (1 << 18)
    lines = list(startup.whole_lines([piece] * 20 + [b"\n", b"next\n"]))
    assert lines[-1] == b"next"
    assert max(map(len, lines)) <= (1 << 20) + len(piece)
    assert sum(line.count(b"x") for line in lines[:-1]) == 20 << 18


def test_bytes_that_are_no_text_are_kept_and_do_no_harm(world: World) -> None:
    world.engine.chunks.put(b"2026-11-20T23:42:51.1Z \xff\xfe\x00 \x1b[2J\n")
    world.engine.chunks.put(b"no time in front\n")
    world.engine.says(*STARTED)
    world.supervisor.start()
    assert b"\xff\xfe\x00 \x1b[2J\nno time in front\n" in world.run.log.read_bytes()
