"""Run directories: what is mounted is exactly what was planned, and the state on disk is whole or not there."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvllm.core.refusal import Refusal, Refused
from nvllm.runtime import gate
from nvllm.serve import rundir
from nvllm.serve.rundir import InstanceState, RunDirectory, all_below

STATE = InstanceState(
    instance="nvllm-demo-eager",
    image="demo",
    profile="eager",
    dev=False,
    stage="ready",
    build_hash="b" * 64,
    serve_hash="c" * 64,
    port=8000,
    supervisor=4711,
    container="d" * 64,
    started=1795218170.869,
    ready=1795218210.5,
    kv_tokens=52428,
    phases=(("gate", 0.318), ("import", 24.557)),
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "state/runs" / STATE.instance)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def prepare(run: RunDirectory, *sentinels: str) -> None:
    run.prepare({"instance": STATE.instance}, b'{"schema":"nvllm.gate/1"}', sentinels)


# What is mounted


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o027, 0o077])
def test_what_is_mounted_can_be_read_by_all_and_written_by_none(run: RunDirectory, mask: int) -> None:
    with umask(mask):
        prepare(run, "drain")
    assert mode(run.mounted) == 0o755
    assert {path.name: mode(path) for path in run.mounted.iterdir()} == {"launch.json": 0o444, "drain": 0o444}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_nobody_else_reaches_the_directory_that_is_mounted(run: RunDirectory, mask: int) -> None:
    with umask(mask):
        prepare(run)
    assert (mode(run.path), mode(run.path.parent)) == (0o700, 0o700)


def test_sentinels_are_exactly_those_of_the_plan(run: RunDirectory) -> None:
    prepare(run, "zeroer", "drain")
    assert sorted(os.listdir(run.mounted)) == ["drain", gate.EXPECTATIONS, "zeroer"]
    assert [(run.mounted / name).read_bytes() for name in ("drain", "zeroer")] == [b"", b""]
    assert (run.mounted / gate.EXPECTATIONS).read_bytes() == b'{"schema":"nvllm.gate/1"}'


def test_nothing_of_an_earlier_start_is_left(run: RunDirectory) -> None:
    prepare(run, "zeroer")
    run.write_state(STATE)
    run.say(1.0, "started", {})
    run.log.write_text("old lines")
    run.ask_to_stop()
    (run.mounted / "intruder").touch()
    prepare(run, "drain")
    assert sorted(os.listdir(run.path)) == ["plan.json", "run"]
    assert sorted(os.listdir(run.mounted)) == ["drain", "launch.json"]
    assert not run.asked_to_stop
    assert run.read_state() is None


def test_the_plan_lies_beside_it_and_is_not_mounted(run: RunDirectory) -> None:
    prepare(run)
    assert json.loads((run.path / "plan.json").read_text()) == {"instance": STATE.instance}


# A place that is not ours


def refusal_of(run: RunDirectory) -> Refusal:
    with pytest.raises(Refused) as caught:
        prepare(run)
    (refusal,) = caught.value.refusals
    return refusal


def test_a_place_that_everybody_may_write_is_refused(run: RunDirectory) -> None:
    """Whoever can write there could put other expectations in the place of ours, between the check and the mount."""
    run.path.parent.mkdir(parents=True)
    run.path.parent.chmod(0o777)
    refusal = refusal_of(run)
    assert (refusal.code, refusal.where) == ("NV513", str(run.path.parent))
    assert (refusal.found, refusal.cure) == ("mode 0777", f"chmod go-w {run.path.parent}")
    assert not run.path.exists()


def test_a_place_of_another_user_is_refused(run: RunDirectory) -> None:
    """Root makes a directory of another user; any other user takes one of root's, which is there already."""
    run.path.parent.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(run.path.parent, 12345, 12345)
        refusal = refusal_of(run)
        assert refusal.found == "one of user 12345"
    else:
        refusal = refusal_of(RunDirectory(Path("/etc") / STATE.instance))
        assert refusal.found == "one of user 0"
    assert refusal.code == "NV513"


def test_a_place_that_is_no_directory_is_refused(run: RunDirectory) -> None:
    run.path.parent.parent.mkdir(parents=True)
    run.path.parent.write_text("a file")
    refusal = refusal_of(run)
    assert (refusal.code, refusal.where, refusal.found) == ("NV513", str(run.path.parent), "a file")


# The state


def test_a_state_that_is_written_is_read(run: RunDirectory) -> None:
    prepare(run)
    for state in (STATE, replace(STATE, stage="failed", reason="NV703 engine died", ready=None)):
        run.write_state(state)
        assert run.read_state() == state


def test_a_run_that_never_began_has_no_state(run: RunDirectory) -> None:
    assert run.read_state() is None


def test_a_torn_partial_is_not_the_state_and_is_overwritten(run: RunDirectory) -> None:
    """What a kill in the middle of a write leaves."""
    prepare(run)
    run.write_state(STATE)
    (run.path / "state.json.partial").write_text('{"instance": "nvl')
    assert run.read_state() == STATE
    run.write_state(replace(STATE, stage="stopped"))
    assert run.read_state() == replace(STATE, stage="stopped")


def test_whoever_reads_while_it_is_written_reads_a_whole_state(run: RunDirectory) -> None:
    prepare(run)
    run.write_state(STATE)
    done = threading.Event()

    def write() -> None:
        for number in range(50):
            run.write_state(replace(STATE, reason="x" * number * 20))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert run.read_state() is not None
    writer.join()


GOOD: dict[str, Any] = json.loads(json.dumps(asdict(STATE)))


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b"\xff\xfe\x00",
        b"{}",
        b"[" * 100_000,
        json.dumps({**GOOD, "an-older-field": 1}).encode(),
        json.dumps({name: value for name, value in GOOD.items() if name != "serve_hash"}).encode(),
        json.dumps({**GOOD, "stage": "flying"}).encode(),
        json.dumps({**GOOD, "port": "many"}).encode(),
        json.dumps({**GOOD, "phases": 3}).encode(),
        json.dumps({**GOOD, "phases": [["gate"]]}).encode(),
        json.dumps({**GOOD, "phases": [["gate", None]]}).encode(),
    ],
)
def test_a_state_that_is_damaged_or_of_another_format_is_unknown(run: RunDirectory, document: bytes) -> None:
    prepare(run)
    (run.path / "state.json").write_bytes(document)
    assert run.read_state() is None
    assert [one.path for one in all_below(run.path.parent)] == [run.path]


def test_a_state_that_is_a_directory_is_unknown(run: RunDirectory) -> None:
    prepare(run)
    (run.path / "state.json").mkdir()
    assert run.read_state() is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(GOOD)) | st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_values | st.dictionaries(st.sampled_from(sorted(GOOD)), json_values).map(lambda some: {**GOOD, **some}))
def test_no_document_makes_status_fail(run: RunDirectory, document: Any) -> None:
    run.path.mkdir(parents=True, exist_ok=True)
    (run.path / "state.json").write_text(json.dumps(document))
    found = run.read_state()
    assert found is None or isinstance(found, InstanceState)


# Evidence, and being asked to stop


def test_evidence_is_appended_line_by_line(run: RunDirectory) -> None:
    prepare(run)
    run.say(1.23456, "started", {"container": "4f"})
    run.say(2.0, "phase", {"name": "gate"})
    lines = [json.loads(line) for line in (run.path / "evidence.jsonl").read_text().splitlines()]
    assert lines == [
        {"time": 1.235, "event": "started", "container": "4f"},
        {"time": 2, "event": "phase", "name": "gate"},
    ]


def test_being_asked_to_stop_is_seen_by_others(run: RunDirectory) -> None:
    prepare(run)
    assert not run.asked_to_stop
    run.ask_to_stop()
    assert RunDirectory(run.path).asked_to_stop


def test_runs_are_listed_by_name_and_only_those_that_began(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        prepare(RunDirectory(tmp_path / "runs" / name))
    for name in ("b", "a"):
        RunDirectory(tmp_path / "runs" / name).write_state(STATE)
    (tmp_path / "runs/stray").touch()
    assert [one.path.name for one in all_below(tmp_path / "runs")] == ["a", "b"]
    assert all_below(tmp_path / "nothing") == []


# No room


@contextmanager
def no_room(size: int = 0) -> Iterator[None]:
    """Let no file of this process grow beyond SIZE bytes: the kernel refuses it as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


WRITES: dict[str, Callable[[RunDirectory], None]] = {
    "prepare": lambda run: prepare(run, "drain"),
    "state": lambda run: run.write_state(STATE),
    "evidence": lambda run: run.say(1.0, "phase", {"name": "gate"}),
    "log": lambda run: run.keep([b"a line"]),
}


@pytest.mark.parametrize("what", WRITES)
def test_what_cannot_be_written_is_refused(run: RunDirectory, what: str) -> None:
    prepare(run)
    with no_room(), pytest.raises(Refused) as caught:
        WRITES[what](run)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found) == ("NV920", os.strerror(errno.EFBIG))
    assert refusal.where.startswith(str(run.path))
    WRITES[what](run)  # and with room again it goes on


def test_a_stop_that_cannot_be_written_down_is_refused(run: RunDirectory) -> None:
    with pytest.raises(Refused) as caught:
        run.ask_to_stop()
    assert [one.code for one in caught.value.refusals] == ["NV920"]


@given(room=st.integers(0, 60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_line_of_evidence_is_whole_or_not_there(run: RunDirectory, room: int) -> None:
    prepare(run)
    run.say(1.0, "before", {})
    path = run.path / "evidence.jsonl"
    before = path.read_bytes()
    with no_room(len(before) + room), contextlib.suppress(Refused):
        run.say(2.0, "during", {})
    run.say(3.0, "after", {})
    events = [json.loads(line)["event"] for line in path.read_bytes().splitlines()]
    assert events in (["before", "after"], ["before", "during", "after"])


def test_a_log_that_becomes_too_long_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "LOG", 1000)
    run = RunDirectory(tmp_path)
    for number in range(100):
        run.keep([f"line {number:03}".encode() + b"x" * 50])
    kept = [path.read_bytes() for path in (run.older_log, run.log) if path.exists()]
    assert sum(map(len, kept)) < 3000
    assert b"".join(kept).splitlines()[-1].startswith(b"line 099")
