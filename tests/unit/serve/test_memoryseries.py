"""The series of memory while an engine of a campaign runs; the kernel's and the engine's figures are planted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.refusal import refuse
from nvllm.host import facts, nvml
from nvllm.host.facts import MemoryInUse
from nvllm.serve import memoryseries
from nvllm.serve.rundir import MEMORY, RunDirectory
from support import fake_nvml
from support.fake_nvml import FakeNvml

GIB = 2**30


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not met() and time.monotonic() < deadline:
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memoryseries, "INTERVAL", 0.002)
    monkeypatch.setattr(facts, "memory", lambda: {"MemAvailable": 8 * GIB})
    fake_nvml.install(monkeypatch, FakeNvml())  # a GPU that shares the host's memory does not say how much it uses


def recorded(run: RunDirectory, *figures: MemoryInUse) -> list[dict[str, int]]:
    """Return the bytes of the first samples of an engine whose container uses FIGURES, one after the other."""
    left = [*figures]

    def written() -> list[str]:
        series = run.path / MEMORY
        return series.read_text().splitlines() if series.exists() else []

    with memoryseries.recording(run, lambda: left.pop(0) if len(left) > 1 else left[0]):
        until(lambda: len(left) == 1 and len(written()) >= len(figures))
    lines = [json.loads(line) for line in written()]
    assert [one["at"] for one in lines] == sorted(one["at"] for one in lines)
    return [one["bytes"] for one in lines[: len(figures)]]


def test_every_figure_is_kept_and_its_extreme_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, FakeNvml(memory=5 * GIB))
    samples = recorded(RunDirectory(tmp_path), MemoryInUse(GIB, 7), MemoryInUse(3 * GIB, 9), MemoryInUse(2 * GIB, 8))
    assert samples[1] == {"available": 8 * GIB, "container": 3 * GIB, "engine": 9, "GPUs": 5 * GIB}
    samples[0]["available"] = 4 * GIB
    assert memoryseries.extremes(samples) == {"available": 4 * GIB, "container": 3 * GIB, "engine": 9, "GPUs": 5 * GIB}


def test_what_nobody_says_is_left_out(tmp_path: Path) -> None:
    assert recorded(RunDirectory(tmp_path), MemoryInUse(None, None)) == [{"available": 8 * GIB}]
    assert memoryseries.extremes([]) == {}
    assert nvml.memory_in_use() is None


def test_an_engine_that_does_not_answer_and_a_full_disk_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent() -> MemoryInUse:
        raise refuse("NV510", "docker engine", "an answer", "none", "systemctl status docker")

    series = tmp_path / MEMORY
    with memoryseries.recording(RunDirectory(tmp_path), silent):
        until(lambda: series.exists() and series.stat().st_size > 0)
    assert json.loads((tmp_path / MEMORY).read_text().splitlines()[0])["bytes"] == {"available": 8 * GIB}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "keep_sample", full)
    with memoryseries.recording(RunDirectory(tmp_path), silent):
        pass


def test_before_there_is_a_container_nothing_is_written(tmp_path: Path) -> None:
    asked: list[int] = []
    with memoryseries.recording(RunDirectory(tmp_path), lambda: asked.append(1)):
        until(lambda: len(asked) > 2)
    assert list(tmp_path.iterdir()) == []
