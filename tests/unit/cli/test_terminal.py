"""What people see: refusals as text, tables, and progress in a pipe and on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.cli import terminal
from nvllm.core.progress import Silent, Task
from nvllm.core.refusal import Refusal


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


STALE = Refusal("NV202", "manifests/cpu.lock.json", "inputs 1111", "inputs 2222", "nvllm lock cpu")
PORT = Refusal("NV507", "127.0.0.1:8000", "a free port", "a listener", "stop it, or\nname another port")


def test_several_refusals_as_text() -> None:
    assert (
        terminal.refusal_text([PORT, STALE], color=False)
        == """\
NV202 lock stale
  where     manifests/cpu.lock.json
  expected  inputs 1111
  found     inputs 2222
  cure      nvllm lock cpu

NV507 port taken
  where     127.0.0.1:8000
  expected  a free port
  found     a listener
  cure      stop it, or
            name another port

2 refusals
"""
    )


def test_one_refusal_is_not_counted() -> None:
    assert terminal.refusal_text([STALE], color=False).endswith("cure      nvllm lock cpu\n")


def test_colour_adds_nothing_but_colour() -> None:
    colored = terminal.refusal_text([STALE, PORT], color=True)
    assert "\x1b[" in colored
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m"):
        colored = colored.replace(code, "")
    assert colored == terminal.refusal_text([STALE, PORT], color=False)


@given(st.text())
def test_what_a_refusal_quotes_cannot_steer_the_terminal(text: str) -> None:
    shown = terminal.refusal_text([Refusal("NV107", "here", "x", text, "y")], color=False)
    assert all(char.isprintable() or char == "\n" for char in shown)


@pytest.mark.parametrize(
    ("env", "tty", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_when_colour_is_wanted(env: dict[str, str], tty: bool, wanted: bool) -> None:
    assert terminal.wants_color(env, tty=tty) is wanted


def test_sizes_for_people() -> None:
    assert [terminal.size(n) for n in (0, 999, 1000, 123_456_789, 1.25e9, 5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "123 MB",
        "1.2 GB",
        "5000 GB",
    ]


def test_a_table_in_a_pipe_is_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(["name", "state"], [["nvllm-cpu-tiny-eager", "ready"], ["x", "\x1b[31mbad"]], color=True)
    assert capsys.readouterr().out == (
        "name                  state\nnvllm-cpu-tiny-eager  ready\nx                     \\x1b[31mbad\n"
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_on_a_terminal_breaks_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Names are copied from it. Where the columns do not fit side by side, they stand below each other."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    columns = ["series", "id", "status", "upstream", "enabled by", "summary"]
    row = ["v0.28.0", "api-key-out-of-compile-key", "carried", "merged 0.29.0", "cpu, sm120", "Keep it out of the key"]
    terminal.print_table(columns, [row, row], color=False)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    words = shown.split()
    for cell in (*columns, *row):
        assert set(cell.split()) <= set(words), cell
    assert words.count("api-key-out-of-compile-key") == 2


def test_a_word_that_is_wider_than_the_terminal_is_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    terminal.print_table(["hash"], [["5" * 64]], color=False)
    assert re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).count("5") == 64


def test_a_table_without_rows_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(["name", "state"], [], color=False)
    assert capsys.readouterr().out == "name  state\n"


def test_quiet_is_silent() -> None:
    assert isinstance(terminal.progress({}, quiet=True, color=False), Silent)


def test_without_a_terminal_progress_is_lines() -> None:
    assert isinstance(terminal.progress({}, quiet=False, color=False), terminal.Lines)


def test_lines_come_at_most_every_five_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with terminal.Lines(stream, clock).task("fetch wheels", 100_000_000, "B") as task:
        for _ in range(12):
            clock.now += 1
            task.advance(5_000_000)
    assert stream.getvalue().splitlines() == [
        "fetch wheels",
        "fetch wheels: 25 % of 100 MB, 5.0 MB/s",
        "fetch wheels: 50 % of 100 MB, 5.0 MB/s",
        "fetch wheels: done, 60.0 MB in 12.0 s",
    ]


def test_lines_without_a_total_tell_what_is_done() -> None:
    stream, clock = io.StringIO(), Clock()
    with terminal.Lines(stream, clock).task("hash", None, "files") as task:
        clock.now += 5
        task.advance(10)
    assert stream.getvalue().splitlines() == ["hash", "hash: 10 files, 2.0 files/s", "hash: done, 10 files in 5.0 s"]


def test_a_task_that_fails_is_not_called_done() -> None:
    stream = io.StringIO()
    with pytest.raises(OSError), terminal.Lines(stream, Clock()).task("fetch", None, "B"):
        raise OSError
    assert stream.getvalue().splitlines() == ["fetch", "fetch: stopped, in 0.0 s"]


def test_threads_advance_one_task_without_losing_any() -> None:
    stream, clock = io.StringIO(), Clock()

    def advance(task: Task) -> None:
        for _ in range(5_000):
            task.advance(1)

    with terminal.Lines(stream, clock).task("fetch", None, "B") as task:
        threads = [threading.Thread(target=advance, args=[task]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "done, 40.0 kB" in stream.getvalue()


def on_a_terminal(program: str, env: dict[str, str]) -> str:
    """Run PROGRAM (Python) with stderr on a pseudo-terminal and return what it wrote there."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=slave,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(terminal.__file__).parents[2]), "TERM": "xterm", "COLUMNS": "120", **env},
    )
    os.close(slave)
    written = b""
    try:
        while block := os.read(master, 65536):
            written += block
    except OSError:  # Linux says EIO when the last writer has closed its end
        pass
    out, _ = child.communicate(timeout=30)
    os.close(master)
    assert (child.returncode, out) == (0, b"")
    return written.decode()


WORK = """
import os, time
from nvllm.cli import terminal
terminal.SHOWN_AFTER = {after}
progress = terminal.progress(os.environ, quiet=False, color={color})
with progress.task("fetch [wheels]", 1_000_000, "B") as task:
    task.advance(250_000)
    progress.note("a [note]")
    time.sleep({seconds})
    task.advance(750_000)
"""


def test_work_of_some_length_is_drawn_on_a_terminal() -> None:
    written = on_a_terminal(WORK.format(after=0.1, color=False, seconds=0.6), {"NO_COLOR": "1"})
    assert "fetch [wheels]" in written
    assert "250 kB of 1.0 MB" in written
    assert "a [note]" in written
    assert "fetch [wheels]: done, 1.0 MB in " in written
    assert "\x1b[3" not in written  # no colour; the cursor may move


def test_short_work_is_not_drawn_on_a_terminal() -> None:
    written = on_a_terminal(WORK.format(after=2.0, color=True, seconds=0.1), {})
    assert "wheels" not in written
    assert "a [note]" in written


def test_a_dumb_terminal_gets_lines() -> None:
    written = on_a_terminal(WORK.format(after=0.1, color=False, seconds=0.2), {"TERM": "dumb"})
    assert "\x1b" not in written
    assert "fetch [wheels]: done" in written


# Tables that grow


def test_a_table_in_a_pipe_is_a_line_for_each_change() -> None:
    stream = io.StringIO()
    with terminal.Lines(stream, Clock()).table(["boot", "state", "start", "memory"]) as table:
        table.row("trial 1", "starting")
        table.row("trial 1", "good", "12.3 s", "")
        table.row("trial 2", "good", "12.4 s", "1 GiB")
    assert stream.getvalue().splitlines() == [
        "trial 1: starting",
        "trial 1: good, start 12.3 s",
        "trial 2: good, start 12.4 s, memory 1 GiB",
    ]


TABLE = """
import os, time
from nvllm.cli import terminal
progress = terminal.progress(os.environ, quiet=False, color=False)
with progress.table(["boot", "state", "start"]) as table:
    table.row("[trial] 1", "starting")
    time.sleep(0.3)
    progress.note("a [note]")
    table.row("[trial] 1", "good", "12.3 s")
    table.row("trial 2", "rejected: \x1b]0;x")
    {ending}
"""


@pytest.mark.parametrize("ending", ["pass", "raise KeyboardInterrupt"])
def test_a_table_on_a_terminal_is_drawn_in_place_and_stays(ending: str) -> None:
    program = "import contextlib\nwith contextlib.suppress(KeyboardInterrupt):\n"
    program += "".join(f"    {line}\n" for line in TABLE.format(ending=ending).splitlines())
    written = on_a_terminal(program, {"NO_COLOR": "1"})
    assert "starting" in written
    assert "a [note]" in written
    assert "\x1b[1A" in written, "the cursor goes back up to draw the table anew"
    assert "\x1b]0;x" not in written
    last = written[written.rindex("boot") :]
    assert [line.split() for line in last.replace("\x1b[?25h", "").splitlines()[:3] if "trial" in line] == [
        ["[trial]", "1", "good", "12.3", "s"],
        ["trial", "2", "rejected:", "\\x1b]0;x"],
    ]


LONG = """
import os, time
from nvllm.cli import terminal
progress = terminal.progress(os.environ, quiet=False, color=False)
with progress.table(["boot", "state"]) as table:
    for number in range(60):
        table.row(f"trial {number}", "good")
    time.sleep(0.3)
"""


def test_of_a_long_table_the_newest_rows_are_drawn_and_all_stay() -> None:
    written = on_a_terminal(LONG, {"NO_COLOR": "1", "LINES": "24"})
    *drawings, last = written.split("boot")[1:]
    assert any("trial 59" in drawing and "trial 47" not in drawing for drawing in drawings)
    assert [line.split()[1] for line in last.splitlines() if line.startswith("trial")] == [str(n) for n in range(60)]
