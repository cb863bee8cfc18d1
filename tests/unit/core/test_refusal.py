"""Refusals: what they must hold, how they are collected, and which exit code they mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.catalogue import CODES
from nvllm.core.refusal import Refusal, Refused, refuse_any

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
    assert set(forwards.refusals) == set(found)
    assert [refusal.code for refusal in forwards.refusals] == sorted(refusal.code for refusal in set(found))
    assert str(forwards) == str(backwards)


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
    found = Refused([Refusal("NV101", place, "a", "b", "c") for place in reversed(places)])
    assert [one.where for one in found.refusals] == places
