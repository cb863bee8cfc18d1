"""Refusals: what they must hold, how they are collected, and which exit code they mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.catalogue import CODES
from nvllm.core.refusal import Refusal, Refused, counted, refuse_any

refusals = st.builds(
    Refusal,
    code=st.sampled_from(sorted(CODES)),
    where=st.text(min_size=1),
    expected=st.text(),
    found=st.text(),
    cure=st.text(),
)


def refusal(code: str, where: str = "here") -> Refusal:
    return Refusal(code, where, "this", "that", "do it")


def test_a_code_that_is_not_in_the_catalogue_is_a_defect() -> None:
    with pytest.raises(ValueError, match="NV999 is not in the catalogue"):
        refusal("NV999")


def test_an_empty_name_is_shown_as_one() -> None:
    assert Refusal("NV107", "", "a name", "", "name one") == Refusal(
        "NV107", "an empty text", "a name", "an empty text", "name one"
    )


def test_title_and_kind_come_from_the_catalogue() -> None:
    assert (refusal("NV202").title, refusal("NV202").kind) == ("lock stale", "refused")


def test_refused_needs_a_refusal() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Refused([])


def test_refuse_any_returns_when_there_is_nothing_to_refuse() -> None:
    refuse_any([])


def test_refuse_any_raises_all() -> None:
    with pytest.raises(Refused) as caught:
        refuse_any([refusal("NV507"), refusal("NV505")])
    assert [r.code for r in caught.value.refusals] == ["NV505", "NV507"]


@given(st.lists(refusals, min_size=1))
def test_the_order_of_finding_does_not_show(found: list[Refusal]) -> None:
    forwards, backwards = Refused(found), Refused(reversed(found))
    assert forwards.refusals == backwards.refusals
    assert {one.code for one in forwards.refusals} == {one.code for one in found}
    codes = [one.code for one in forwards.refusals]
    assert codes == sorted(codes)
    assert str(forwards) == str(backwards)


def test_one_cause_is_one_entry_with_a_count() -> None:
    """Once --offline with an empty store gave 103 refusals."""
    missing = [
        Refusal("NV204", "store", f"file-{number:03}", "not in the store", "nvllm fetch a") for number in range(103)
    ]
    other = refusal("NV202")
    first, entry = counted(Refused([*missing, other]).refusals)
    assert first == other
    assert (entry.where, entry.cure) == ("store", "nvllm fetch a")
    assert entry.found == "not in the store, 103 times"
    assert entry.expected == "file-000; file-001; file-002; file-003; file-004; and 98 more"
    assert counted([entry]) == [entry]
    assert len(Refused([*missing, other]).refusals) == 104  # a caller of the library gets each


@given(st.lists(refusals, min_size=1, unique=True))
def test_what_differs_in_finding_or_cure_has_causes_of_its_own(found: list[Refusal]) -> None:
    causes = {(one.code, one.found, one.cure) for one in found}
    if len(causes) == len(found):
        assert set(counted(found)) == set(found)


def test_a_few_places_are_shown_one_by_one() -> None:
    assert len(counted([refusal("NV507", where) for where in "abc"])) == 3
    (one,) = counted([refusal("NV507", where) for where in "abcd"])
    assert one.where == "a; b; c; d"


def test_places_are_sorted_as_people_count() -> None:
    places = [Refusal("NV101", f"images/cpu.yaml:{line}: .a", "", "", "") for line in (12, 4, 100)]
    assert [one.where.split(":")[1] for one in Refused(places).refusals] == ["4", "12", "100"]


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [
        (["NV101"], 2),
        (["NV206"], 1),
        (["NV505"], 3),
        (["NV101", "NV505"], 3),
        (["NV206", "NV505"], 3),
        (["NV206", "NV101"], 2),
    ],
)
def test_the_exit_code_is_that_of_the_gravest_kind(codes: list[str], exit_code: int) -> None:
    assert Refused([refusal(code) for code in codes]).exit_code == exit_code


def test_places_with_numbers_of_any_length_have_an_order() -> None:
    places = ["x:2", "x:0010", "x:11", f"x:{'9' * 5000}"]
    found = Refused([Refusal("NV101", place, "a", f"b {place}", "c") for place in reversed(places)])
    assert [one.where for one in found.refusals] == places
