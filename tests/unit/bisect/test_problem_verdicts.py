"""Trials, tallies and verdicts: what counts, and when a set is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect.problem import Tally, Verdict, tally
from nvllm.trials.trial import Trial, TrialStage

TRIALS = st.sampled_from([Trial("good"), Trial("bad", "exit 1"), Trial("untestable", stage="boot")])


def test_a_trial_has_a_stage_exactly_when_it_is_untestable() -> None:
    with pytest.raises(ValueError):
        Trial("untestable")
    with pytest.raises(ValueError):
        Trial("bad", stage="boot")


@given(st.lists(TRIALS), st.lists(TRIALS))
def test_a_tally_is_the_sum_of_its_parts(one: list[Trial], other: list[Trial]) -> None:
    whole, added = tally([*one, *other]), tally(one) + tally(other)
    assert whole == added
    assert whole.conclusive + whole.untestable == len(one) + len(other)


def test_a_set_is_given_up_when_nothing_came_of_it_or_when_it_stopped_coming() -> None:
    untestable = Trial("untestable", stage="boot")
    assert not tally([untestable] * 2).blocked  # tried again: three attempts
    assert tally([untestable] * 3).unknown
    assert not tally([Trial("good"), *[untestable] * 5]).blocked
    worn = tally([Trial("good"), *[untestable] * 6])
    assert (worn.blocked, worn.unknown) == (True, False)  # no more trials, but what it showed counts
    assert not Tally().blocked


@pytest.mark.parametrize("stage", ["apply", "build", "skipped"])
def test_what_another_trial_cannot_change_is_not_tried_again(stage: TrialStage) -> None:
    assert tally([Trial("untestable", stage=stage)]).unknown


def test_a_tally_keeps_the_order_of_its_conclusive_trials() -> None:
    trials = [Trial("good"), Trial("bad"), Trial("untestable", stage="boot"), Trial("good")]
    assert tally(trials).order == "+x+"
    assert Tally(bad=2, good=1).order == "xx+"


def test_what_people_read() -> None:
    assert str(Tally(bad=2, good=3)) == "bad 2 of 5"
    assert str(Tally(good=3)) == "good 3 of 3"
    assert str(Tally()) == "not tried"
    assert str(Tally(untestable=1, stage="apply")) == "untestable (apply)"
    assert str(Verdict("bad", Tally(bad=1, kind="exit 3"), 0.9981)) == "bad (exit 3), 0.998"
    assert str(Verdict("good", Tally(good=1))) == "good"
