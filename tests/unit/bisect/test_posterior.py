"""Beliefs: the Beta distribution, where the culprit is, and which trial is worth most."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect import posterior
from nvllm.bisect.posterior import Beta, Compared, Count

COUNTS = st.builds(Count, st.integers(0, 30), st.integers(0, 30))


def test_known_quantiles() -> None:
    assert Beta(1, 1).interval() == pytest.approx((0.025, 0.975))
    # The median of Beta(2, 1) has the closed form sqrt(1/2), the 5 % quantile of Beta(6, 1) is 0.05 ** (1/6).
    assert Beta(2, 1).quantile(0.5) == pytest.approx(math.sqrt(0.5))
    assert Beta(6, 1).quantile(0.05) == pytest.approx(0.05 ** (1 / 6))
    assert Beta(1, 6).quantile(0.95) == pytest.approx(1 - 0.05 ** (1 / 6))


@given(st.floats(0.2, 50), st.floats(0.2, 50), st.floats(0.05, 0.95))
def test_an_interval_holds_what_it_says(a: float, b: float, level: float) -> None:
    low, high = Beta(a, b).interval(level)
    assert 0 <= low <= high <= 1
    assert Beta(b, a).interval(level) == pytest.approx((1 - high, 1 - low), abs=1e-6)


@given(COUNTS, COUNTS)
def test_evidence_comes_to_the_same_at_once_and_in_parts_and_is_taken_back(one: Count, other: Count) -> None:
    before = posterior.unknown()
    parts = [before.if_holds(count) for count in (one, other)]
    both = before.after(parts)
    together = before.after([before.if_holds(Count(one.hits + other.hits, one.misses + other.misses))])
    for alike, apart, at_once in zip(both.grid.alike, both.logs, together.logs, strict=True):
        assert alike > 0 or apart == pytest.approx(at_once)  # of one rate, two artifacts say as much as one
    assert both.but(parts[0]).but(parts[1]).logs == pytest.approx(before.logs)


def test_bigger_sets_that_all_lack_the_effect_make_no_set_look_bad() -> None:
    """Of two bigger sets with nothing in common but this one, both may lack a patch that is needed."""
    ends = posterior.unknown()
    ends = ends.after([ends.if_holds(Count(14, 21)), ends.if_other(Count(0, 11))])
    pairs = [(Count(1, 11), Count(0, 12)), (Count(0, 12), Count(0, 12))]
    assert posterior.shows(ends, Count(2, 30), pairs=pairs) < posterior.shows(ends, Count(2, 30))


def test_a_set_of_which_nothing_is_known_is_one_or_the_other() -> None:
    rates = posterior.known(0.4, 0.02)
    (log,) = rates.if_either(Count(1, 2))
    assert math.exp(log) == pytest.approx((0.4 * 0.6**2 + 0.02 * 0.98**2) / 2)


@given(st.lists(COUNTS, max_size=5), COUNTS)
def test_a_fix_is_a_break_with_hits_for_misses(others: list[Count], seen: Count) -> None:
    found, turned = posterior.unknown(), posterior.unknown(fix=True)
    found = found.after([found.if_either(one) for one in others])
    swapped = [Count(one.misses, one.hits) for one in others]
    turned = turned.after([turned.if_either(one) for one in swapped])
    same = posterior.shows(turned, Count(seen.misses, seen.hits))
    assert posterior.shows(found, seen) + same == pytest.approx(1)


def test_false_alarms_of_other_sets_teach_their_rate() -> None:
    """The good end never failed, but many other sets do now and then. Without them two of eight would look bad."""
    ends = posterior.unknown()
    ends = ends.after([ends.if_holds(Count(12, 8)), ends.if_other(Count(0, 12))])
    stray = ends.after([ends.if_either(Count(3, 20))] * 4)
    assert posterior.shows(ends, Count(2, 6)) > 0.5 > 0.4 > posterior.shows(stray, Count(2, 6))


def test_a_belief_is_bayes_theorem() -> None:
    rates = posterior.known(0.4, 0.02)
    held = posterior.belief(rates, [0.25] * 4, {2: Count(1, 1), 3: Count(0, 2)})
    by_hand = [0.4 * 0.6 * 0.6**2, 0.4 * 0.6 * 0.6**2, 0.02 * 0.98 * 0.6**2, 0.02 * 0.98 * 0.98**2]
    assert held.weights == pytest.approx([one / sum(by_hand) for one in by_hand])


def test_a_belief_counts_sets_that_are_no_prefix() -> None:
    """The set failed once. It has the first patch and lacks the last; of the two between nobody knows."""
    rates = posterior.known(0.4, 0.02)
    believed = posterior.belief(rates, [0.25] * 4, {}, [Compared(1, 3, Count(1, 0))])
    by_hand = [0.4, 0.21, 0.21, 0.02]
    assert believed.weights == pytest.approx([chance / sum(by_hand) for chance in by_hand])
    prefix = posterior.belief(rates, [0.25] * 4, {2: Count(1, 3)})
    assert posterior.belief(rates, [0.25] * 4, {}, [Compared(2, 2, Count(1, 3))]).weights == prefix.weights


@given(st.dictionaries(st.integers(1, 7), COUNTS))
def test_weights_are_probabilities(seen: dict[int, Count]) -> None:
    held = posterior.belief(posterior.unknown(), [1 / 8] * 8, seen)
    assert sum(held.weights) == pytest.approx(1)
    assert min(held.weights) >= 0


def test_the_first_cut_is_in_the_middle_and_an_image_that_exists_is_preferred() -> None:
    held = posterior.belief(posterior.known(0.99, 0.01), [1 / 16] * 16, {})
    candidates = list(range(1, 16))
    assert posterior.choose(held, candidates, frozenset(), 1.0) == 8
    assert posterior.choose(held, candidates, frozenset({7}), 1.0) == 7
    assert posterior.choose(held, candidates, frozenset({7}), 0.0) == 8
    assert posterior.choose(held, candidates, frozenset({3}), 1.0) == 8


def test_enough_passes_make_a_set_good_and_a_stray_failure_is_borne() -> None:
    rates = posterior.known(0.4, 0.02)
    assert posterior.shows(rates, Count(0, 10)) < 0.01
    assert posterior.shows(rates, Count(0, 9)) == pytest.approx(1 / (1 + (0.98 / 0.6) ** 9))
    assert posterior.shows(rates, Count(2, 3)) > 0.97
    assert posterior.shows(rates, Count(1, 30)) < 0.01


def test_the_likely_range_is_the_shortest_that_is_sure_enough() -> None:
    cells = [(0, 2), (2, 3), (3, 4), (4, 8)]
    weights = (0.01, 0.5, 0.45, 0.04)
    assert posterior.likely_range(cells, weights, 0.5) == (2, 3)
    assert posterior.likely_range(cells, weights, 0.95) == (2, 4)
    assert posterior.likely_range(cells, weights, 0.995) == (0, 8)


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.9), st.integers(0, 8))
def test_the_chances_of_all_outcomes_of_an_artifact_add_up_to_one(rate: float, alike: float, trials: int) -> None:
    chances = [
        math.comb(trials, hits) * math.exp(posterior.likelihood((rate,), (alike,), Count(hits, trials - hits))[0])
        for hits in range(trials + 1)
    ]
    assert sum(chances) == pytest.approx(1)


def test_ten_trials_of_one_artifact_say_less_than_one_of_ten() -> None:
    """At the correlation 0.85 an artifact that never failed may well contain the culprit; ten of them hardly."""
    rates = posterior.Rates(posterior.Grid((0.5,), (0.01,), (0.85,), (False,)), (0.0,))
    assert posterior.shows(rates, Count(0, 10)) > 0.2
    assert posterior.shows(rates, Count(0, 1), above=[Count(0, 1)] * 9) < 0.01


def test_bigger_sets_that_show_and_smaller_ones_that_do_not_say_nothing() -> None:
    rates = posterior.known(0.5, 0.001)
    alone = posterior.shows(rates, Count(0, 4))
    assert posterior.shows(rates, Count(0, 4), above=[Count(5, 5)], below=[Count(0, 9)]) == pytest.approx(alone)
    assert posterior.shows(rates, Count(0, 4), above=[Count(0, 4)]) < alone


def test_two_bigger_sets_that_share_nothing_else_tell_whether_a_patch_is_missing() -> None:
    rates = posterior.known(0.5, 0.05)
    alone = posterior.shows(rates, Count(1, 1))
    assert posterior.shows(rates, Count(1, 1), pairs=[(Count(2, 1), Count(1, 1))]) > alone
    assert posterior.shows(rates, Count(1, 1), pairs=[(Count(2, 1), Count(0, 9))]) < alone


def test_many_artifacts_of_one_set_are_not_as_many_sets() -> None:
    """Six artifacts of a set that never failed: either none of them would, or the set is one that seldom does."""
    rates = posterior.unknown(several=True)
    rates = rates.after([rates.if_holds(Count(6, 0, tuple([Count(1, 0)] * 6))), rates.if_other(Count(0, 30))])
    six = Count(0, 6, tuple([Count(0, 1)] * 6))
    sets = posterior.shows(rates, Count(0, 1), above=[Count(0, 1)] * 5)
    assert posterior.shows(rates, Count(0, 6)) > posterior.shows(rates, six) > sets


def test_the_next_trial_is_of_the_artifact_with_the_fewest() -> None:
    seen = Count(5, 1, (Count(5, 0), Count(0, 1)))
    grid = posterior.Grid((0.5, 0.5), (0.1, 0.1), (0.85, 0.85), (False, True))
    rates = posterior.Rates(grid, (0.0, 0.0))
    (shared, own), _ = posterior.belief(rates, [0.5, 0.5], {}).likely.next_hits(seen)
    assert shared > 0.7 > 0.2 > own
