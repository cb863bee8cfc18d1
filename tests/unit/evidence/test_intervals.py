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
    assert intervals.sign_test(hits, count) == near(p)


def test_wilsons_interval() -> None:
    assert intervals.share(48, 50, 0.95) == near((0.8654, 0.9890), abs=1e-4)
    assert intervals.share(0, 10, 0.95) == near((0.0, 0.2775), abs=1e-4)
    assert intervals.share(0, 0, 0.95) == (0.0, 1.0)


def test_holms_correction() -> None:
    assert intervals.holm([0.01, 0.04, 0.03, 0.005]) == near((0.03, 0.06, 0.06, 0.02))
    assert intervals.holm([]) == ()


def test_agresti_and_mins_interval() -> None:
    """Ten of 100 questions better, two worse: (b - c)/(n + 2), and its width by hand."""
    found = intervals.paired_shares([1.0] * 10 + [-1.0] * 2 + [0.0] * 88, 0.95)
    width = 1.959964 * math.sqrt(13 - 64 / 102) / 102
    assert (found.value, found.low, found.high) == near((0.08, 8 / 102 - width, 8 / 102 + width), abs=1e-6)
    assert found.p == near(2 * (1 + 12 + 66) / 2**12)


def test_no_difference_still_has_a_width() -> None:
    found = intervals.paired_shares([0.0] * 50, 0.95)
    assert found.value == 0
    assert found.p == 1
    assert found.low is not None
    assert found.high is not None
    assert found.low < -0.03 < 0.03 < found.high


def test_a_mean_needs_two_values() -> None:
    assert intervals.mean([], 0.95).observations == 0
    assert intervals.mean([3.0], 0.95) == intervals.Estimate(3.0, None, None, None, 1)
    found = intervals.mean([1.0, 2.0, 3.0], 0.95)
    assert (found.low, found.high) == near((2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), abs=1e-3)


def test_a_ratio() -> None:
    found = intervals.ratio([math.log(1.05), math.log(1.04), math.log(1.06)], 0.95)
    assert found.value == near(1.05, abs=1e-3)
    assert found.low is not None
    assert found.low > 1.02


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), st.floats(0.5, 0.999))
def test_an_interval_of_shares_is_one(differences: Sequence[float], level: float) -> None:
    found = intervals.paired_shares(differences, level)
    assert found.low is not None
    assert found.high is not None
    assert -1 <= found.low < found.high <= 1
    assert found.p is not None
    assert 0 <= found.p <= 1


@given(st.lists(st.floats(0, 1), max_size=12))
def test_a_corrected_p_value_is_never_smaller(values: Sequence[float]) -> None:
    assert all(0 <= old <= new <= 1 for old, new in zip(values, intervals.holm(values), strict=True))
