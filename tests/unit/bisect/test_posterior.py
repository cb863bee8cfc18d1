"""Beliefs: the Beta distribution, where the culprit is, and which trial is worth most."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect import posterior
from nvllm.bisect.posterior import Beta, Count, Known, Rates

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
def test_evidence_comes_to_the_same_at_once_and_in_parts(one: Count, other: Count) -> None:
    for rate in (Beta(1, 1), Beta(0.2, 9.8)):
        both = rate.log_evidence(one) + rate.plus(one).log_evidence(other)
        assert rate.log_evidence(one + other) == pytest.approx(both, abs=1e-6)
    assert Known(0.4).given(one) == 0.4


@given(COUNTS, COUNTS)
def test_one_of_two_rates_is_the_higher_one(one: Count, other: Count) -> None:
    assert posterior.higher(one, other) + posterior.higher(other, one) == pytest.approx(1, abs=1e-6)


def test_the_higher_rate_by_simulation() -> None:
    rng = random.Random(1)
    hits = sum(rng.betavariate(1 + 3, 1 + 4) > rng.betavariate(1 + 1, 1 + 6) for _ in range(20000))
    assert posterior.higher(Count(3, 4), Count(1, 6)) == pytest.approx(hits / 20000, abs=0.02)


def test_a_belief_is_bayes_theorem() -> None:
    rates = Rates(Known(0.4), Known(0.02))
    held = posterior.belief(rates, [0.25] * 4, {2: Count(1, 1), 3: Count(0, 2)})
    by_hand = [0.4 * 0.6 * 0.6**2, 0.4 * 0.6 * 0.6**2, 0.02 * 0.98 * 0.6**2, 0.02 * 0.98 * 0.98**2]
    assert held.weights == pytest.approx([one / sum(by_hand) for one in by_hand])


@given(st.dictionaries(st.integers(1, 7), COUNTS))
def test_weights_are_probabilities(seen: dict[int, Count]) -> None:
    held = posterior.belief(Rates(Beta(), Beta(0.2, 9.8)), [1 / 8] * 8, seen)
    assert sum(held.weights) == pytest.approx(1)
    assert min(held.weights) >= 0


def test_the_first_cut_is_in_the_middle_and_an_image_that_exists_is_preferred() -> None:
    held = posterior.belief(Rates(Known(0.99), Known(0.01)), [1 / 16] * 16, {})
    candidates = list(range(1, 16))
    assert posterior.choose(held, candidates, frozenset(), 1.0) == 8
    assert posterior.choose(held, candidates, frozenset({7}), 1.0) == 7
    assert posterior.choose(held, candidates, frozenset({7}), 0.0) == 8
    assert posterior.choose(held, candidates, frozenset({3}), 1.0) == 8


def test_enough_passes_make_a_set_good_and_a_stray_failure_is_borne() -> None:
    rates = Rates(Known(0.4), Known(0.02))
    assert posterior.shows(rates, Count(0, 10)) < 0.01
    assert posterior.shows(rates, Count(0, 9)) == pytest.approx(1 / (1 + (0.98 / 0.6) ** 9))
    assert posterior.shows(rates, Count(2, 3)) > 0.97
    assert posterior.shows(rates, Count(1, 30)) < 0.01
