"""The claim: how many boots it needs, what they support, and that a replica is no second sample."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.cache import confidence
from nvllm.cache.confidence import Replay
from nvllm.core.refusal import Refused


@pytest.mark.parametrize(("rate", "boots"), [(0.55, 6), (0.54, 5), (0.74, 10), (0.90, 29), (0.95, 59), (0.05, 1)])
def test_known_numbers(rate: float, boots: int) -> None:
    assert confidence.boots_for(rate) == boots


@pytest.mark.parametrize(("boots", "bound"), [(0, 0.0), (1, 0.05), (3, 0.37), (5, 0.55), (10, 0.74), (29, 0.90)])
def test_known_bounds(boots: int, bound: float) -> None:
    assert round(confidence.lower_bound(boots), 2) == bound


@given(st.floats(0.001, 0.999))
def test_as_many_as_needed_and_no_more(rate: float) -> None:
    boots = confidence.boots_for(rate)
    assert confidence.lower_bound(boots) >= rate
    assert boots == 1 or confidence.lower_bound(boots - 1) < rate


@given(st.integers(1, 400))
def test_the_bound_of_some_boots_needs_just_these(boots: int) -> None:
    assert confidence.boots_for(confidence.lower_bound(boots)) == boots


@pytest.mark.parametrize("rate", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_what_is_no_rate(rate: float) -> None:
    with pytest.raises(Refused) as refused:
        confidence.boots_for(rate)
    assert [(one.code, one.where) for one in refused.value.refusals] == [("NV108", "--claim")]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=30), st.integers(2, 9)
)
def test_replicas_inside_a_boot_are_not_fresh_boots(answers: list[tuple[str, str, bool]], times: int) -> None:
    once = confidence.claimed(Replay(*one) for one in answers)
    often = confidence.claimed(Replay(*one) for one in answers * times)
    assert (often.boots, often.good_boots, often.prompts, often.bound) == (
        once.boots, once.good_boots, once.prompts, once.bound
    )  # fmt: skip
    assert often.replays == times * once.replays
    assert once.boots == len({boot for boot, _, _ in answers})


def test_one_wrong_answer_spoils_its_boot_and_the_claim() -> None:
    found = confidence.claimed([Replay("a", "x", True), Replay("b", "x", True), Replay("b", "y", False)])
    assert (found.boots, found.good_boots, found.bound) == (2, 1, 0.0)
    assert not found.supports(0.05)
    assert str(found) == "1 of 2 fresh boots good; 3 answers to 3 prompts inside them"


def test_what_five_boots_support_is_said() -> None:
    found = confidence.claimed(Replay(str(boot), "x", True) for boot in range(5) for _ in range(8))
    assert found.supports(0.54)
    assert not found.supports(0.90)
    said = (
        "5 of 5 fresh boots good: at least 54 % of boots are, with 95 % confidence; 40 answers to 5 prompts inside them"
    )
    assert str(found) == said


def test_nothing_supports_nothing() -> None:
    assert not confidence.claimed([]).supports(0.05)
    assert str(confidence.claimed([])) == "0 of 0 fresh boots good; 0 answers to 0 prompts inside them"
