"""Explaining a difference: it names every leaf that differs, and is empty exactly where nothing does."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.explain import Factor, differences
from nvllm.serve import servehash
from support.plansamples import PLAN, SPEC, build, plan, with_profile

keys = st.sampled_from(["a", "b", "id", "a.b", "(order)"]) | st.text(st.characters(codec="ascii"), max_size=4)
leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0]) | st.sampled_from(["", "1", "x"])
patches = st.lists(st.fixed_dictionaries({"id": st.sampled_from("abcd"), "sha256": st.sampled_from("xy")}), max_size=4)
documents: st.SearchStrategy[Json] = st.recursive(
    leaves | patches,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(documents, documents)
def test_empty_exactly_where_the_hashes_are_equal(before: Json, after: Json) -> None:
    same = canonical.encode(before) == canonical.encode(after)
    assert (differences(before, after) == ()) is same


@given(documents)
def test_nothing_differs_from_itself(document: Json) -> None:
    assert differences(document, copy.deepcopy(document)) == ()


@given(documents, documents)
def test_the_other_way_round_is_the_same_with_the_sides_exchanged(before: Json, after: Json) -> None:
    there = {(one.path, one.before, one.after) for one in differences(before, after)}
    assert there == {(one.path, one.after, one.before) for one in differences(after, before)}


@given(documents, documents)
def test_factors_are_sorted_by_path(before: Json, after: Json) -> None:
    paths = [one.path for one in differences(before, after)]
    assert paths == sorted(paths)


@given(st.dictionaries(st.sampled_from("abcdef"), leaves, min_size=1), st.data())
def test_one_leaf_that_changes_is_the_one_that_is_named(document: dict[str, Json], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(document)))
    value = data.draw(leaves)
    assume(canonical.encode(value) != canonical.encode(document[key]))
    nested = {"factors": {"inner": document}}
    changed = {"factors": {"inner": {**document, key: value}}}
    (found,) = differences(nested, changed)
    assert found.path == f".factors.inner.{key}"


def test_a_path_is_dotted_and_a_value_is_shown_as_it_is_written() -> None:
    assert differences({"a": {"b": "text", "c": 1}}, {"a": {"b": "other", "c": [1, {"d": None}]}}) == (
        Factor(".a.b", "text", "other"),
        Factor(".a.c", "1", '[1,{"d":null}]'),
    )


def test_what_is_only_on_one_side_is_not_there_on_the_other() -> None:
    assert differences({"old": 1, "null": None}, {"new": "x"}) == (
        Factor(".new", None, "x"),
        Factor(".null", "null", None),
        Factor(".old", "1", None),
    )


def test_the_whole_may_differ() -> None:
    assert differences(1, "x") == (Factor(".", "1", "x"),)


def test_true_is_not_one() -> None:
    """Python calls them equal, and no hash does."""
    assert differences({"a": True}, {"a": 1}) == (Factor(".a", "true", "1"),)
    assert differences([True], [1]) == (Factor(".", "[true]", "[1]"),)
    assert differences(1, 1.0) == ()


def test_paths_that_read_alike_are_both_named() -> None:
    found = differences({"a": {"b": 1}}, {"a": {}, "a.b": 2})
    assert found == (Factor(".a.b", "1", None), Factor(".a.b", None, "2"))


def test_of_long_sets_only_the_difference_is_shown() -> None:
    """Nobody finds the one flag of a CPU among eighty."""
    many = [f"flag{number:02}" for number in range(20)]
    assert differences({"flags": many}, {"flags": [*many[1:], "new"]}) == (Factor(".flags", "flag00", "new"),)
    assert differences({"flags": many}, {"flags": many[:-1]}) == (Factor(".flags", "flag19", "nothing else"),)
    (found,) = differences({"flags": many}, {"flags": [*reversed(many)]})  # in another order it is no set
    assert found.before is not None
    assert found.before.startswith('["flag00"')


flags = [f"flag{number:02}" for number in range(24)]
long_sets = st.lists(st.sampled_from(flags), unique=True, min_size=16).map(sorted)


@given(long_sets, long_sets)
def test_long_sets_differ_where_they_differ(before: list[str], after: list[str]) -> None:
    found = differences(list[Json](before), list[Json](after))
    assert (found == ()) is (before == after)
    if found:
        shown = {word for one in found for text in (one.before, one.after) for word in (text or "").split()}
        assert shown - {"nothing", "else"} == set(before) ^ set(after)


# Patch sets: lists of objects with an id


def patch_set(*ids: str, **hashes: str) -> list[Json]:
    return [{"id": one, "sha256": hashes.get(one, "0")} for one in ids]


def test_a_patch_that_changed_is_named_by_its_id() -> None:
    assert differences({"patches": patch_set("a", "b")}, {"patches": patch_set("a", "b", b="1")}) == (
        Factor(".patches.b.sha256", "0", "1"),
    )


def test_a_patch_that_came_does_not_change_the_others() -> None:
    (found,) = differences({"patches": patch_set("b")}, {"patches": patch_set("a", "b")})
    assert found == Factor(".patches.a", None, '{"id":"a","sha256":"0"}')


def test_another_order_is_a_factor_of_its_own() -> None:
    assert differences({"patches": patch_set("a", "b", "c")}, {"patches": patch_set("c", "a", "b")}) == (
        Factor(".patches (order)", "a b c", "c a b"),
    )


def test_the_order_is_that_of_what_both_have() -> None:
    found = differences(patch_set("a", "b", "c"), patch_set("c", "d", "a"))
    assert [(one.path, one.before, one.after) for one in found if "order" in one.path] == [(" (order)", "a c", "c a")]
    assert [one.path for one in found if "order" not in one.path] == [".b", ".d"]


def test_from_nothing_to_a_patch_set() -> None:
    assert [one.path for one in differences({"patches": []}, {"patches": patch_set("a", "b")})] == [
        ".patches.a",
        ".patches.b",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([{"id": "a"}, {"id": "a", "x": 1}], [{"id": "a", "x": 1}]),
        ([{"id": 1}], [{"id": "1"}]),
        ([{"id": "a"}], [{"id": "a"}, {"id": "a"}]),
    ],
)
def test_ids_that_do_not_identify_are_no_ids(before: Json, after: Json) -> None:
    assert [one.path for one in differences(before, after)] == ["."]


def test_other_lists_are_compared_as_a_whole() -> None:
    """One argument that moves would otherwise look like many that changed."""
    assert differences({"command": ["a", "b"]}, {"command": ["a", "c", "b"]}) == (
        Factor(".command", '["a","b"]', '["a","c","b"]'),
    )


# What it is for


def test_two_serve_hashes() -> None:
    other = plan(with_profile(SPEC, sentinels=("drain",), environment={"OMP_NUM_THREADS": "4"}))
    found = differences(servehash.factors(PLAN), servehash.factors(other))
    assert found == (
        Factor(".environment.OMP_NUM_THREADS", "2", "4"),
        Factor(".sentinels", '["drain","zeroer"]', '["drain"]'),
    )


def test_two_build_hashes() -> None:
    one = build()
    other = replace(one, lock=replace(one.lock, epoch=1))
    assert differences(one.factors, other.factors) == (Factor(".epoch", "1760000000", "1"),)
