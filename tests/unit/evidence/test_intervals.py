"""Intervals: values from tables, and what must hold for any data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.evidence import intervals
from support.rows import each_row

near = pytest.approx


@each_row(
    ("freedom", "probability", "value"),
    [(1, 0.975, 12.7062), (2, 0.975, 4.3027), (4, 0.975, 2.7764), (9, 0.95, 1.8331), (30, 0.995, 2.7500)],
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, probability: float, value: float) -> None:
    assert intervals.student_quantile(probability, freedom) == near(value, abs=5e-4)
    assert intervals.student(value, freedom) == near(probability, abs=1e-5)
    assert intervals.student(-value, freedom) == near(1 - probability, abs=1e-5)


@each_row(("hits", "count", "p"), [(0, 0, 1.0), (5, 5, 0.0625), (9, 10, 0.021484375), (5, 10, 1.0), (0, 1, 1.0)])
def test_the_sign_test(hits: int, count: int, p: float) -> None:
    assert intervals.sign_test(hits, count - hits) == near(p)


def test_clopper_and_pearsons_interval() -> None:
    assert intervals.share(48, 50, 0.95) == near((0.8629, 0.9951), abs=1e-4)
    assert intervals.share(0, 10, 0.95) == near((0.0, 0.3085), abs=1e-4)
    assert intervals.share(0, 0, 0.95) == (0.0, 1.0)


def test_holms_correction() -> None:
    assert intervals.holm([0.01, 0.04, 0.03, 0.005]) == near((0.03, 0.06, 0.06, 0.02))
    assert intervals.holm([]) == ()


def test_an_interval_of_paired_shares_that_all_differ_one_way_is_that_of_the_share() -> None:
    estimate = intervals.paired_shares([1.0] * 10 + [0.0] * 90, 0.95, 0.05)
    assert estimate.high == near(intervals.share(10, 100, 0.95)[1])
    assert estimate.p == near(2 / 2**10)


def test_no_difference_still_has_a_width() -> None:
    found = intervals.paired_shares([0.0] * 50, 0.95, 0.05)
    assert found.value == 0
    assert found.p == 1
    assert found.low is not None
    assert found.high is not None
    assert found.low < -0.03 < 0.03 < found.high


def test_a_mean_needs_two_values() -> None:
    assert intervals.mean([], 0.95, 0.1).observations == 0
    assert intervals.mean([3.0], 0.95, 0.1) == intervals.Estimate(3.0, None, None, None, 1)
    found = intervals.mean([1.0, 2.0, 3.0], 0.95, 0.1)
    assert (found.low, found.high) == near((2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), abs=1e-3)


def test_a_ratio() -> None:
    found = intervals.ratio([math.log(1.05), math.log(1.04), math.log(1.06)], 0.95, 0.03)
    assert found.value == near(1.05, abs=1e-3)
    assert found.low is not None
    assert found.low > 1.02


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), st.floats(0.5, 0.999))
def test_an_interval_of_shares_is_one(differences: Sequence[float], level: float) -> None:
    found = intervals.paired_shares(differences, level, 0.05)
    assert found.low is not None
    assert found.high is not None
    assert -1 <= found.low < found.high <= 1
    assert found.p is not None
    assert 0 <= found.p <= 1


@given(st.lists(st.floats(0, 1), max_size=12))
def test_a_corrected_p_value_is_never_smaller(values: Sequence[float]) -> None:
    assert all(0 <= old <= new <= 1 for old, new in zip(values, intervals.holm(values), strict=True))
