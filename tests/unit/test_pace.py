"""Pace: what is slow, and which times prove a compile. A host that is merely slow never does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvllm import pace
from nvllm.manifest import Phase
from nvllm.pace import Slow

WARM = {"gate": 0.2, "import": 12.0, "weights": 6.0, "compile": 3.0, "warm-up": 4.0, "server": 1.0, "first token": 0.5}
COLD = {**WARM, "compile": 40.0}
BOOTS = [WARM, {**WARM, "import": 14.0}, {**WARM, "compile": 4.0}]


def test_phases_by_name() -> None:
    assert pace.times((Phase("gate", 0.5), Phase("import", 3.0))) == {"gate": 0.5, "import": 3.0}


def test_the_slowest_of_each_phase() -> None:
    assert pace.slowest(BOOTS) == {**WARM, "import": 14.0, "compile": 4.0}


def test_a_start_like_the_trials_is_not_slow() -> None:
    for boot in BOOTS:
        assert pace.slow(boot, BOOTS) == ()
        assert pace.compiled(boot, BOOTS, COLD) is None


def test_slow_is_twice_the_slowest_and_seconds_longer() -> None:
    assert pace.slow({**WARM, "import": 28.0}, BOOTS) == ()
    assert pace.slow({**WARM, "import": 28.1}, BOOTS) == (Slow("import", 28.1, 14.0),)
    assert pace.slow({**WARM, "gate": 5.0}, BOOTS) == (), "twenty-five times as long, and not worth a word"
    assert str(pace.slow({**WARM, "gate": 5.3}, BOOTS)[0]) == "gate 5.3 s, in the trials at most 0.2 s"


def test_a_phase_that_no_trial_had_is_slow_when_it_takes_time() -> None:
    eager = [{name: seconds for name, seconds in WARM.items() if name != "compile"}]
    assert pace.slow({**eager[0], "compile": 6.0}, eager) == (Slow("compile", 6.0, 0.0),)


def test_a_load_that_took_as_long_as_the_compile_was_one() -> None:
    found = pace.compiled({**WARM, "compile": 33.0}, BOOTS, COLD)
    assert found == (
        "blessed code that loads within 4.0 s, as in the trials",
        "33.0 s, in a start that was not slow otherwise; compiling took 40.0 s",
    )
    assert pace.compiled({**WARM, "compile": 31.9}, BOOTS, COLD) is None


def test_where_compiling_is_quick_times_prove_nothing() -> None:
    assert pace.compiled({**WARM, "compile": 13.0}, BOOTS, {**COLD, "compile": 13.9}) is None
    assert pace.compiled({**WARM, "compile": 13.0}, BOOTS, {**COLD, "compile": 14.0}) is not None


def test_a_bootstrap_that_said_no_phase_proves_nothing() -> None:
    assert pace.compiled({**WARM, "compile": 100.0}, BOOTS, {}) is None


def test_a_trial_is_held_against_the_bootstrap() -> None:
    assert pace.compiled_again(WARM, COLD) is None
    found = pace.compiled_again({**WARM, "compile": 32.0}, COLD)
    assert found is not None
    assert found[1] == "32.0 s, in a start that was not slow otherwise; compiling took 40.0 s"
    assert pace.compiled_again({**WARM, "compile": 32.0, "import": 30.0}, COLD) is None, "a slow host"
    assert pace.compiled_again({**WARM, "compile": 9.0}, {**COLD, "compile": 9.5}) is None, "quick anyway"
    assert pace.compiled_again({"compile": 90.0}, {}) is None


@given(st.floats(1.0, 100.0))
def test_a_host_that_is_slow_in_every_phase_never_compiles(factor: float) -> None:
    took = {name: seconds * factor for name, seconds in WARM.items()}
    assert pace.compiled(took, BOOTS, COLD) is None
