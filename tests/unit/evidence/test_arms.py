"""Arms: what a design compares, how they are named, and in which order legs are run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.refusal import Refused
from nvllm.evidence import arms
from support.rows import each_row


def test_the_designs() -> None:
    assert arms.designed("full", ("b", "a")) == ((), ("a",), ("b",), ("a", "b"))
    assert arms.designed("drop-one", ("a", "b", "c")) == (("a", "b", "c"), ("b", "c"), ("a", "c"), ("a", "b"))
    assert arms.designed("add-one", ("a", "b", "c")) == ((), ("a",), ("b",), ("c",))


@each_row(("count", "legs"), [(1, 2), (4, 16), (5, 6)])
def test_without_a_design_it_is_full_while_that_is_small(count: int, legs: int) -> None:
    assert len(arms.designed(None, tuple("abcde"[:count]))) == legs


def test_arms_by_name() -> None:
    assert arms.named("both, neither,a,b", ("a", "b")) == (("a", "b"), (), ("a",), ("b",))
    assert arms.named("all,c+a", ("a", "b", "c")) == (("a", "b", "c"), ("a", "c"))
    assert [arms.name(one) for one in ((), ("a",), ("a", "c"))] == ["none", "a", "a+c"]


@each_row("text", ["a", "a,d", "a,a", "a,,b", ""])
def test_what_names_no_arms_is_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        arms.named(text, ("a", "b"))
    assert {one.code for one in caught.value.refusals} == {"NV108"}


@given(st.integers(1, 8), st.integers(1, 8))
def test_every_run_has_every_arm_once(count: int, runs: int) -> None:
    legs = arms.schedule(count, runs)
    assert [run for _, run in legs] == sorted(run for _, run in legs)
    assert Counter(legs) == Counter((arm, run) for arm in range(count) for run in range(1, runs + 1))


def test_a_drift_burdens_two_arms_alike() -> None:
    places = {arm: [place for place, leg in enumerate(arms.schedule(2, 2)) if leg[0] == arm] for arm in (0, 1)}
    assert places == {0: [0, 3], 1: [1, 2]}
