"""The worker's end of a pipe: what it takes for a task, and when it takes its driver for gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from nvllm.fleet import pipe
from nvllm.fleet.pipe import DriverPipe, LineSplitter
from nvllm.fleet.tasks import MOST_LINE


@dataclass
class Ends:
    """A pipe whose writing end, DRIVER, a test has; WORKER reads. SIGNALS are those that the process would get."""

    reads: int
    driver: int
    written: list[str] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    signalled: threading.Event = field(default_factory=threading.Event)

    def worker(self, beat: float = 5.0, silence: float = 5.0) -> DriverPipe:
        return DriverPipe(self.reads, self.written.append, beat, silence)

    def kill(self, _thread: int, number: int) -> None:
        self.signals.append(number)
        self.signalled.set()

    def close(self) -> None:
        os.close(self.driver)
        self.driver = -1


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    ends = Ends(*os.pipe())
    monkeypatch.setattr("nvllm.fleet.pipe.signal.pthread_kill", ends.kill)
    yield ends
    for descriptor in (ends.reads, ends.driver):
        if descriptor >= 0:
            os.close(descriptor)


def test_lines_are_split_wherever_they_are_cut() -> None:
    lines = LineSplitter()
    assert [line for data in (b"\n\na", b"b", b"c\n", b" \nd\ne") for line in lines.add(data)] == [b"abc", b"d"]
    assert lines.add(b"\n") == [b"e"]


def test_a_line_without_an_end_is_given_up() -> None:
    lines, many = LineSplitter(), b"x" * pipe.CHUNK
    given_up = [line for _ in range(MOST_LINE // pipe.CHUNK + 1) for line in lines.add(many)]
    assert [len(line) > MOST_LINE for line in given_up] == [True]
    assert lines.add(b"rest\nnext\n") == [b"rest", b"next"]


def test_a_driver_that_goes_between_tasks_ends_the_worker_and_no_task(ends: Ends) -> None:
    os.write(ends.driver, b"\ntask 1\n\ntask 2\n")
    worker, lines = ends.worker(), []
    for line in worker.lines():
        lines.append(line)
        worker.answer(f"answer {len(lines)}")
        if len(lines) == 2:
            ends.close()
    assert lines == [b"task 1", b"task 2"]
    assert [line for line in ends.written if line] == ["answer 1", "answer 2"]
    assert ends.signals == []


def test_a_driver_that_goes_in_a_task_ends_it(ends: Ends) -> None:
    os.write(ends.driver, b"task\n")
    lines = ends.worker().lines()
    assert next(lines) == b"task"
    ends.close()
    assert ends.signalled.wait(10)
    assert ends.signals == [signal.SIGTERM]
    assert list(lines) == []


def test_a_driver_that_is_silent_is_gone(ends: Ends) -> None:
    os.write(ends.driver, b"task\n")
    lines = ends.worker(beat=0.02, silence=0.2).lines()
    assert next(lines) == b"task"
    assert ends.signalled.wait(10)
    assert ends.written.count("") > 2
    assert list(lines) == []


def test_a_driver_that_only_beats_hears_beats(ends: Ends) -> None:
    """What comes in time must not keep the worker from showing that it lives."""
    lines = ends.worker(beat=0.05, silence=5).lines()
    stop = threading.Event()

    def beats() -> None:
        while not stop.wait(0.01):
            os.write(ends.driver, b"\n")
            if len(ends.written) > 3:
                stop.set()
        os.write(ends.driver, b"task\n")

    thread = threading.Thread(target=beats)
    thread.start()
    assert next(lines) == b"task"
    thread.join()
    assert len(ends.written) > 3
    ends.close()  # the thread that listens has to end before `kill` is the real one again
    assert list(lines) == []


def test_a_driver_that_reads_no_more_is_gone(ends: Ends) -> None:
    def broken(_line: str) -> None:
        raise BrokenPipeError

    assert list(DriverPipe(ends.reads, broken).lines()) == []
