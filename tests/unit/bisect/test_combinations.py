"""Which sets of patches may be proposed: closed, and free of conflicts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect import combinations
from nvllm.bisect.combinations import Combinations
from nvllm.core.refusal import Refused
from nvllm.patches import seriesfile
from support.bisect_world import free, layered
from support.rows import each_row
from support.series_samples import SHOWN, two_patches


@given(st.integers(), st.integers(min_value=1, max_value=12), st.data())
def test_closing_and_taking_out_keep_a_set_closed(seed: int, count: int, data: st.DataObject) -> None:
    found = layered(count, random.Random(seed))
    chosen = found.closed(data.draw(st.sets(st.sampled_from(found.order))))
    assert found.valid(chosen)
    assert found.closed(chosen) == chosen
    gone = data.draw(st.sampled_from(found.order))
    smaller = found.without(chosen, [gone])
    assert found.valid(smaller)
    assert gone not in smaller
    # Only what requires the patch went with it.
    assert all(gone in found.closed({other}) for other in chosen - smaller)


def test_a_conflict_makes_a_set_invalid() -> None:
    found = Combinations(("a", "b"), {}, {"a": frozenset({"b"}), "b": frozenset({"a"})})
    assert found.valid(frozenset({"a"}))
    assert not found.valid(frozenset({"a", "b"}))


def test_a_set_that_lacks_something_or_is_unknown_is_invalid() -> None:
    found = Combinations(("a", "b"), {"b": frozenset({"a"})}, {})
    assert not found.valid(frozenset({"b"}))
    assert not found.valid(frozenset({"c"}))


def test_the_combinations_of_a_series(tmp_path: Path) -> None:
    series = seriesfile.load(two_patches(tmp_path), SHOWN)
    found = combinations.of_series(series)
    assert found.order == ("first", "second")
    assert found.closed({"second"}) == {"first", "second"}
    assert combinations.named(series, "all", [], where="--bad") == {"first", "second"}
    assert combinations.named(series, "none", ["first"], where="--bad") == frozenset()
    assert combinations.named(series, "spec", ["first"], where="--bad") == {"first"}
    assert combinations.named(series, " first , second", [], where="--bad") == {"first", "second"}
    with pytest.raises(Refused) as caught:
        combinations.named(series, "secnd", [], where="--bad")
    assert [(one.code, one.where, one.cure) for one in caught.value.refusals] == [("NV107", "--bad", "write second")]


@each_row(("low", "high"), [("ab", "ab"), ("ab", "a"), ("a", "b")])
def test_ends_of_which_the_smaller_is_not_inside_the_bigger(low: str, high: str) -> None:
    with pytest.raises(Refused) as caught:
        combinations.check_ends(frozenset(low), frozenset(high), where="--bad a --good b")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV108", "--bad a --good b")
    assert "--find fix" in refusal.cure


def test_the_name_of_a_set_does_not_depend_on_its_order() -> None:
    assert combinations.set_hash(["a", "b"]) == combinations.set_hash({"b", "a"}) != combinations.set_hash(["ab"])
    assert free(3).ordered({"p03", "p01"}) == ("p01", "p03")
