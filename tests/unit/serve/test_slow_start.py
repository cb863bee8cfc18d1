"""Pace: what is slow, and what processor time proves. A host that is merely busy is slow and proves nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.cache.manifest import PhaseTime, StartCost
from nvllm.serve import slow_start
from nvllm.serve.slow_start import SlowPhase

WARM = {"gate": 0.2, "import": 12.0, "weights": 6.0, "compile": 3.0, "warm-up": 4.0, "server": 1.0, "first token": 0.5}
BOOTS = [WARM, {**WARM, "import": 14.0}, {**WARM, "compile": 4.0}]


def test_phases_by_name() -> None:
    assert slow_start.times((PhaseTime("gate", 0.5), PhaseTime("import", 3.0))) == {"gate": 0.5, "import": 3.0}


def test_the_slowest_of_each_phase() -> None:
    assert slow_start.slowest(BOOTS) == {**WARM, "import": 14.0, "compile": 4.0}


def test_a_start_like_the_trials_is_not_slow() -> None:
    for boot in BOOTS:
        assert slow_start.slow(boot, BOOTS) == ()


def test_slow_is_twice_the_slowest_and_seconds_longer() -> None:
    assert slow_start.slow({**WARM, "import": 28.0}, BOOTS) == ()
    assert slow_start.slow({**WARM, "import": 28.1}, BOOTS) == (SlowPhase("import", 28.1, 14.0),)
    assert slow_start.slow({**WARM, "gate": 5.0}, BOOTS) == (), "twenty-five times as long, and not worth a word"
    assert str(slow_start.slow({**WARM, "gate": 5.3}, BOOTS)[0]) == "gate 5.3 s, in the trials at most 0.2 s"


def test_a_phase_that_no_trial_had_is_slow_when_it_takes_time() -> None:
    eager = [{name: seconds for name, seconds in WARM.items() if name != "compile"}]
    assert slow_start.slow({**eager[0], "compile": 6.0}, eager) == (SlowPhase("compile", 6.0, 0.0),)


# Processor time


@pytest.mark.parametrize(
    ("processor", "boots", "cold", "compiled"),
    [
        (25.0, (24.0, 26.0), 80.0, False),
        (63.9, (24.0, 26.0), 80.0, False),
        (64.0, (24.0, 26.0), 80.0, True),
        (75.0, (50.0, 40.0), 80.0, False),
        (75.1, (50.0, 40.0), 80.0, True),
        (79.0, (52.0,), 61.9, False),
        (79.0, (52.0,), 62.0, True),
    ],
    ids=["a load", "just below", "a compile", "half more", "and more", "hardly apart", "apart"],
)
def test_what_a_compile_takes(processor: float, boots: tuple[float, ...], cold: float, compiled: bool) -> None:
    assert (slow_start.compiled(processor, boots, cold) is not None) is compiled


def test_what_is_said_of_it() -> None:
    assert slow_start.compiled(70.0, [24.0, 26.0], 80.0) == (
        "a start that loads the cache: at most 26.0 processor seconds, as in the trials",
        "70.0 processor seconds; the bootstrap, which compiled, took 80.0",
    )


@given(st.lists(st.floats(0.1, 1000.0), min_size=1), st.floats(0.1, 2000.0), st.floats(0.1, 1.5))
def test_no_load_is_ever_taken_for_a_compile(boots: list[float], cold: float, factor: float) -> None:
    assert slow_start.compiled(max(boots) * factor, boots, cold) is None


@pytest.mark.parametrize(
    ("processor", "seconds", "compiled"), [(72.0, 32.0, True), (71.9, 32.0, False), (72.0, 31.9, False)]
)
def test_a_trial_is_held_against_the_bootstrap_by_processor_and_clock(
    processor: float, seconds: float, compiled: bool
) -> None:
    cold = StartCost((PhaseTime("compile", 40.0),), 80.0)
    trial = StartCost((PhaseTime("compile", seconds),), processor)
    assert (slow_start.compiled_again(trial, cold) is not None) is compiled


def test_where_compiling_is_quick_a_trial_tells_nothing() -> None:
    assert (
        slow_start.compiled_again(
            StartCost((PhaseTime("compile", 9.9),), 80.0), StartCost((PhaseTime("compile", 9.9),), 80.0)
        )
        is None
    )
    assert slow_start.compiled_again(StartCost((), 80.0), StartCost((), 80.0)) is None
