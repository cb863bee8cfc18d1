"""A serve in the background. A small program stands for the supervisor, which needs an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.serve import detach
from support.serve_world import (
    Noted,
)

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
            detach.show_lines(written, noted)
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
