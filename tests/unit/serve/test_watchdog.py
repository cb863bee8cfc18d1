"""The watchdog over MemAvailable, with figures that are planted where the kernel's are read."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from nvllm.core.refusal import refuse
from nvllm.host import facts
from nvllm.serve import watchdog
from nvllm.serve.watchdog import MemoryWatch

GIB = 2**30


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "INTERVAL", 0.002)


def planted(monkeypatch: pytest.MonkeyPatch, *figures: int | None) -> None:
    """Let MemAvailable be FIGURES, one after the other, and then the last one; None is a kernel that does not say."""
    left = list(figures)

    def memory() -> dict[str, int]:
        figure = left.pop(0) if len(left) > 1 else left[0]
        return {} if figure is None else {"MemAvailable": figure}

    monkeypatch.setattr(facts, "memory", memory)


def waited(until: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not until() and time.monotonic() < deadline:
        time.sleep(0.002)
    return until()


def test_below_the_floor_the_container_is_ended_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, 2 * GIB, None, GIB, GIB - 1, 3 * GIB)
    asked: list[int] = []

    def end() -> bool:
        asked.append(1)
        return True

    with MemoryWatch(GIB, end).watching() as watch:
        assert waited(lambda: bool(asked))
        time.sleep(0.02)
    assert (watch.below, asked) == (GIB - 1, [1])


@pytest.mark.parametrize("figure", [None, GIB, 2 * GIB])
def test_at_the_floor_and_where_the_kernel_says_nothing_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, figure: int | None
) -> None:
    planted(monkeypatch, figure)
    with MemoryWatch(GIB, pytest.fail).watching() as watch:
        time.sleep(0.02)
    assert watch.below is None


def test_a_container_that_is_not_there_yet_is_ended_when_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was created after the memory had come back."""
    planted(monkeypatch, 1, 4 * GIB)
    there: list[bool] = [False, False, True]
    with MemoryWatch(GIB, lambda: there.pop(0)).watching() as watch:
        assert waited(lambda: not there)
    assert watch.below == 1


def test_an_engine_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, 1)
    asked: list[int] = []

    def end() -> bool:
        asked.append(1)
        if len(asked) < 3:
            raise refuse("NV510", "engine", "an answer", "none", "docker ps")
        return True

    with MemoryWatch(GIB, end).watching():
        assert waited(lambda: len(asked) == 3)
        time.sleep(0.02)
    assert len(asked) == 3
