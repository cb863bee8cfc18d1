"""Proving the ends: how many trials each gets. What is refused is in tests/refusals/test_nv801.py."""

from __future__ import annotations

import itertools
import random

import pytest

from nvllm.bisect import judge
from nvllm.bisect.judge import EndTrial
from nvllm.bisect.problem import EndName, Settings, Tally
from nvllm.core.refusal import Refused
from support.rows import each_row

STEADY = Settings()
FLAKY = Settings(flaky=True)


def test_a_steady_failure_gets_its_repeats_at_both_ends() -> None:
    assert judge.next_end(Tally(), Tally(), STEADY) == EndTrial("bad", "the bad end, trial 1")
    assert judge.next_end(Tally(bad=1), Tally(), STEADY) == EndTrial("good", "the good end, trial 1")
    assert judge.next_end(Tally(bad=2), Tally(good=3), STEADY) == EndTrial("bad", "the bad end, trial 3 of 3")
    assert judge.next_end(Tally(bad=3), Tally(good=3), STEADY) is None


def test_a_flaky_failure_is_measured_until_the_rates_differ() -> None:
    few = judge.next_end(Tally(bad=2, good=3), Tally(good=3), FLAKY)
    assert few == EndTrial("bad", "the bad end: 2 of 3 failures")
    close = judge.next_end(Tally(bad=3, good=4), Tally(good=3), FLAKY)
    assert close is not None
    assert close.end == "good"
    assert judge.next_end(Tally(bad=9, good=1), Tally(good=10), FLAKY) is None


def test_a_probe_that_gives_up_at_an_end_is_tried_again_while_patience_is_left() -> None:
    """A set that does not boot three times is given up: its engine would fail again."""
    for settings in (STEADY, FLAKY):
        again = judge.next_end(Tally(untestable=3, stage="harness"), Tally(good=3), settings)
        assert again == EndTrial("bad", "the bad end, trial 1, again after harness")
        for tally in (Tally(untestable=settings.patience, stage="harness"), Tally(untestable=3, stage="boot")):
            with pytest.raises(Refused):
                judge.next_end(tally, Tally(good=3), settings)


def test_a_rate_is_told_with_its_interval() -> None:
    assert judge.rate_text(Tally(bad=3)) == "bad 3 of 3, failure rate 0.40 to 0.99 at 95 %"


@each_row(("bad", "good"), [(0.1, 0.1), (0.5, 0.5), (0.9, 0.9), (0.02, 0.3), (0.4, 0.6)])
def test_the_evidence_is_expected_to_be_one_at_most_where_nothing_differs(bad: float, good: float) -> None:
    """All outcomes of three pairs, weighed by their chance: what makes looking again and again harmless."""
    expected = 0.0
    for one in itertools.product("x+", repeat=3):
        for other in itertools.product("x+", repeat=3):
            chance = bad ** one.count("x") * (1 - bad) ** one.count("+")
            chance *= good ** other.count("x") * (1 - good) ** other.count("+")
            expected += chance * judge.difference("".join(one), "".join(other), float("inf"), 0).value
    assert expected <= 1 + 1e-9


def test_ends_that_differ_are_proved_and_stay_proved() -> None:
    found = judge.difference("xxxx+xxx" * 5, "++++++++" * 5, 100, 3)
    assert found.pairs is not None
    assert found == judge.difference("xxxx+xxx" * 5 + "+" * 9, "++++++++" * 5, 100, 3)
    assert judge.difference("xx+x" * 10, "xx+x" * 10, 100, 3).pairs is None


def test_trials_in_turn_are_paired_by_when_they_were_and_never_by_what_they_were() -> None:
    far: list[tuple[EndName | None, str]] = [(None, "x")] * 8
    bad_first: list[tuple[EndName | None, str]] = [("bad", "x"), (None, "+"), ("good", "+")]
    assert judge.in_turn([]) == judge.Turns("", "", None)
    assert judge.in_turn([("bad", "x")]) == judge.Turns("", "", "good")
    assert judge.in_turn([("good", "x"), *far]) == judge.Turns("", "", None)
    assert judge.in_turn(bad_first) == judge.Turns("x", "+", None)
    assert judge.in_turn([("bad", "+"), *bad_first]) == judge.Turns("x", "+", None)  # the trial next to it counts
    assert judge.in_turn([("bad", "x"), *far, ("good", "+")]) == judge.Turns("", "", "bad")
    assert judge.in_turn([*bad_first, ("good", "x"), ("bad", "+")]) == judge.Turns("x+", "+x", None)


def test_the_watch_tells_a_rate_that_holds_from_one_that_falls() -> None:
    before = "xx+x+xx+x+"
    assert judge.watch(before, 10) == judge.Watch(
        Tally(bad=6, good=4, order=before), Tally(), steady=False, doubtful=False, fallen=False
    )
    held = judge.watch(before + "x+xx+xx", 10)
    assert (held.steady, held.doubtful, held.fallen) == (True, False, False)
    doubtful = judge.watch(before + "+" * 8, 10)
    assert (doubtful.steady, doubtful.doubtful, doubtful.fallen) == (False, True, False)
    fell = judge.watch(before + "x+xx" + "+" * 40, 10)
    assert (fell.steady, fell.fallen) == (False, True)
    assert str(fell) == "the bad end failed 6 of 10 times before the search and 3 of 44 times since"


def test_a_rate_that_holds_is_seldom_said_to_fall() -> None:
    rng = random.Random(1)
    fallen = sum(
        judge.watch("".join("x" if rng.random() < 0.35 else "+" for _ in range(50)), 12).fallen for _ in range(2000)
    )
    assert fallen <= 4
