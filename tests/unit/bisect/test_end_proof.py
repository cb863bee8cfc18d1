"""Proving the ends: how many trials each gets. What is refused is in tests/refusals/test_nv801.py."""

from __future__ import annotations

from nvllm.bisect import end_proof
from nvllm.bisect.end_proof import EndTrial
from nvllm.bisect.problem import Settings
from nvllm.bisect.verdict import Tally

STEADY = Settings()
FLAKY = Settings(flaky=True)


def test_a_steady_failure_gets_its_repeats_at_both_ends() -> None:
    assert end_proof.next_end(Tally(), Tally(), STEADY) == EndTrial("bad", "the bad end, trial 1")
    assert end_proof.next_end(Tally(bad=1), Tally(), STEADY) == EndTrial("good", "the good end, trial 1")
    assert end_proof.next_end(Tally(bad=2), Tally(good=3), STEADY) == EndTrial("bad", "the bad end, trial 3 of 3")
    assert end_proof.next_end(Tally(bad=3), Tally(good=3), STEADY) is None


def test_a_flaky_failure_is_measured_until_the_rates_differ() -> None:
    few = end_proof.next_end(Tally(bad=2, good=3), Tally(good=3), FLAKY)
    assert few == EndTrial("bad", "the bad end: 2 of 3 failures")
    close = end_proof.next_end(Tally(bad=3, good=4), Tally(good=3), FLAKY)
    assert close is not None
    assert close.end == "good"
    assert end_proof.next_end(Tally(bad=3, good=4), Tally(good=30), FLAKY) is None


def test_a_rate_is_told_with_its_interval() -> None:
    assert end_proof.rate_text(Tally(bad=3)) == "bad 3 of 3, failure rate 0.40 to 0.99 at 95 %"
