"""A percentile lies between its neighbours, where numpy puts it."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.statistics import percentile

VALUES = st.lists(st.floats(0, 1e6), min_size=1)


@pytest.mark.parametrize(("percent", "value"), [(50, 3.0), (95, 4.8), (99, 4.96), (1, 1.04)])
def test_what_numpy_says(percent: int, value: float) -> None:
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], percent) == pytest.approx(value)


def test_one_value_is_each_percentile() -> None:
    assert [percentile([7.0], one) for one in (1, 50, 99)] == [7.0] * 3


@given(VALUES, st.integers(1, 99))
def test_it_lies_between_two_values_that_so_many_do_not_exceed(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert min(values) - 1e-6 <= found <= max(values) + 1e-6
    place = (len(values) - 1) * percent / 100
    assert sum(one <= found + 1e-6 for one in values) >= int(place) + 1
    assert sum(one >= found - 1e-6 for one in values) >= len(values) - int(place) - 1


@given(VALUES)
def test_the_middle_is_the_median(values: list[float]) -> None:
    assert percentile(values, 50) == pytest.approx(statistics.median(values))
