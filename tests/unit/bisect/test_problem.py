"""What a search is asked: which patches, and which outcome is the effect."""

from __future__ import annotations

from dataclasses import replace

from nvllm.bisect.posterior import Count
from nvllm.bisect.problem import SearchEvidence, Tally, tally
from nvllm.trials.trial import Trial, TrialOutcome
from support.bisect_world import free, problem


def test_what_is_searched_is_what_the_low_end_lacks() -> None:
    asked = replace(problem(free(4)), low=frozenset({"p02"}))
    assert asked.items == ("p01", "p03", "p04")


def test_the_effect_of_a_fix_is_that_it_is_good() -> None:
    breaks, repairs = problem(free(2)), problem(free(2), "set", "fix")
    assert [breaks.effect("bad"), breaks.effect("good"), breaks.effect("untestable")] == [True, False, False]
    assert [repairs.effect("bad"), repairs.effect("good"), repairs.effect("untestable")] == [False, True, False]
    assert breaks.ends == {"bad": breaks.high, "good": breaks.low}
    assert repairs.ends == {"bad": repairs.low, "good": repairs.high}
    assert (breaks.count(Tally(bad=1, good=2)), repairs.count(Tally(bad=1, good=2))) == (Count(1, 2), Count(2, 1))
    outcomes: tuple[tuple[TrialOutcome, str], ...] = (("bad", "one"), ("good", "two"), ("bad", "one"), ("good", ""))
    loaded = tally([Trial(outcome, artifact=artifact) for outcome, artifact in outcomes])
    assert breaks.count(loaded) == Count(2, 2, (Count(2, 0), Count(0, 1), Count(0, 1)))
    assert repairs.count(loaded + tally([Trial("untestable", stage="boot", artifact="two")])).apart[0] == Count(0, 2)


def test_a_set_that_was_never_tried_has_an_empty_tally() -> None:
    assert SearchEvidence({}).tally(frozenset({"p01"})) == Tally()
