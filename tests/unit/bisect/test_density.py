"""How many patches a steady set search leaves out next."""

from __future__ import annotations

import itertools

import pytest

from nvllm.bisect import density
from nvllm.bisect.density import leave_out


def test_a_group_is_clean_as_often_as_in_all_sets_that_may_be_needed() -> None:
    """Of six patches the last is left out, the first is needed, and four are left: all sets that agree, weighed."""
    sets = [frozenset({0, *more}) for size in range(5) for more in itertools.combinations(range(1, 5), size)]
    same_size = [len(list(itertools.combinations(range(6), len(one)))) for one in sets]
    weights = [0.3 ** len(one) / count for one, count in zip(sets, same_size, strict=True)]
    for size in range(1, 5):
        group = frozenset(range(5 - size, 5))
        clean = sum(weight for one, weight in zip(sets, weights, strict=True) if not one & group)
        others = frozenset(range(1, 5)) - group
        line = sum(weight for one, weight in zip(sets, weights, strict=True) if others <= one and len(one & group) <= 1)
        known = density.groups(6, 1, 4)
        assert known.clean[size] == pytest.approx(clean / sum(weights))
        assert known.line[size] == pytest.approx(line / sum(weights))


@pytest.mark.parametrize("total", [2, 5, 16, 17, 40])
def test_a_group_that_is_not_clean_is_always_split(total: int) -> None:
    for group in range(2, total + 1):
        assert 1 <= leave_out(total, 0, total, group) < group
    for needed in range(1, total):
        assert 1 <= leave_out(total, needed, total - needed, 0) <= total - needed


def test_fewer_are_left_out_at_once_the_more_are_needed() -> None:
    assert leave_out(64, 1, 30, 0) > leave_out(64, 6, 30, 0) > leave_out(64, 20, 30, 0)
    assert leave_out(16, 1, 3, 0) == 3
    assert leave_out(16, 12, 3, 0) == 1
