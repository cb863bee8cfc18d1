"""The claim: how many boots it needs, what they support, and that a replica is no second sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.cache import confidence, manifest
from nvllm.cache.confidence import lower_bound
from nvllm.core.refusal import Refused
from support.blessings_world import trial


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


@given(st.lists(st.sampled_from("abc"), max_size=9), st.integers(1, 99))
def test_replicas_inside_a_boot_are_not_fresh_boots(boots: list[str], times: int) -> None:
    trials = tuple(trial(number, boot=boot) for number, boot in enumerate(boots, 1))
    once = manifest.claimed(trials, None)
    often = manifest.claimed(tuple(replace(one, replays=one.replays * times) for one in trials), None)
    assert (often.boots, often.bound) == (once.boots, once.bound) == (len(set(boots)), lower_bound(len(set(boots))))
    assert often.replays == times * once.replays


def test_one_bad_trial_spoils_the_claim() -> None:
    found = manifest.claimed((trial(1), trial(2, coherent=False)), None)
    assert (found.boots, found.bound) == (2, 0.0)
