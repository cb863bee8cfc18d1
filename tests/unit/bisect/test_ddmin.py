"""ddmin: the result shows the effect, nothing can go from it, and only closed sets are tried."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from nvllm.bisect import ddmin
from nvllm.bisect.combinations import Combinations
from nvllm.bisect.verdict import PatchSet
from support.bisect_world import free, layered


def counted(found: Combinations, shows: Callable[[PatchSet], bool], tried: set[PatchSet]) -> Callable[[PatchSet], bool]:
    def ask(chosen: PatchSet) -> bool:
        assert found.valid(chosen)
        tried.add(chosen)
        return shows(chosen)

    return ask


@pytest.mark.parametrize("seed", range(100))
def test_whatever_the_effect_depends_on_nothing_can_go_from_the_result(seed: int) -> None:
    """The effect is a random one, so it is hardly ever monotone."""
    rng = random.Random(seed)
    found = layered(rng.randrange(2, 11), rng)
    everything = frozenset(found.order)
    answers: dict[PatchSet, bool] = {everything: True, frozenset(): False}

    def shows(chosen: PatchSet) -> bool:
        return answers.setdefault(chosen, rng.random() < 0.3)

    result = ddmin.minimise(found, everything, frozenset(), counted(found, shows, set()))
    assert answers[result]
    assert all(not shows(found.without(result, [one])) for one in result)


def test_the_base_stays_in_every_set() -> None:
    found = free(6)
    tried: set[PatchSet] = set()
    base = frozenset({"p02"})
    ask = counted(found, lambda chosen: {"p02", "p05"} <= chosen, tried)
    assert ddmin.minimise(found, frozenset(found.order), base, ask) == {"p02", "p05"}
    assert all(base <= chosen for chosen in tried)


def test_it_costs_about_what_is_known_of_ddmin() -> None:
    """16 patches, 2 culprits: 20.9 sets on average elsewhere, both ends included."""
    found, rng, costs = free(16), random.Random(3), []
    for _ in range(150):
        culprits = frozenset(rng.sample(found.order, 2))
        tried: set[PatchSet] = {frozenset(), frozenset(found.order)}
        ask = counted(found, culprits.issubset, tried)
        assert ddmin.minimise(found, frozenset(found.order), frozenset(), ask) == culprits
        costs.append(len(tried))
    assert 18 < sum(costs) / len(costs) < 24
