"""Replicas: identical runs are one sample."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from nvllm.evidence import samples

OUTPUTS = st.lists(st.sampled_from("abcde"), max_size=12)


@given(OUTPUTS)
def test_every_run_is_in_one_group_and_groups_differ(outputs: Sequence[str]) -> None:
    found = samples.groups(outputs)
    assert sorted(place for group in found for place in group) == list(range(len(outputs)))
    assert all(len({outputs[place] for place in group}) == 1 for group in found)
    assert len({outputs[group[0]] for group in found}) == len(found) == len(set(outputs))


@given(OUTPUTS, st.integers(0, 11))
def test_a_run_that_repeats_another_adds_no_sample(outputs: Sequence[str], place: int) -> None:
    if outputs:
        again = [*outputs, outputs[place % len(outputs)]]
        assert samples.distinct(again) == samples.distinct(outputs)


def test_five_identical_runs_are_one_sample() -> None:
    assert samples.distinct(["x"] * 5) == (0,)
