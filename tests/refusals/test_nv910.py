"""NV910, drift: the nearest blessing differs in a factor of the serve hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.core.refusal import Refused
from support.blessings_world import TREE, bless, blessings, other_tree, query
from support.plansamples import PLAN

CHANGED = replace(PLAN, environment={**PLAN.environment, "VLLM_NEW_SWITCH": "1"})
FAR = replace(CHANGED, dev=True, build_hash="f" * 64)


def test_the_factor_that_differs_is_named(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    with pytest.raises(Refused) as caught:
        held.lookup(query(CHANGED))
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV910", f"{place}: .factors.environment.VLLM_NEW_SWITCH")
    assert (one.expected, one.found) == ("nothing", "1")
    assert one.cure == f"nvllm bless {PLAN.image} --profile {PLAN.profile}"


def test_the_nearest_one_is_what_it_is_compared_with(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(other_tree(2), FAR, label="a-far-one"))
    near = promotion.promote(held, bless(TREE, label="z-near-one"))
    with pytest.raises(Refused) as caught:
        held.lookup(query(CHANGED))
    assert {one.where.split(":")[0] for one in caught.value.refusals} == {str(near)}


def test_the_cache_of_another_cpu(tmp_path: Path) -> None:
    """It holds code for instructions that this one may lack."""
    flags = tuple(sorted(f"flag{number}" for number in range(20)))
    there = replace(PLAN, cpu=replace(PLAN.cpu, flags=tuple(sorted((*flags, "avx512f")))))
    here = replace(PLAN, cpu=replace(PLAN.cpu, kind="GenuineIntel 6 151", flags=flags))
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE, there))
    with pytest.raises(Refused) as caught:
        held.lookup(query(here))
    said = [(one.code, one.where, one.expected, one.found) for one in caught.value.refusals]
    assert said == [
        ("NV910", f"{place}: .factors.cpu.flags", "avx512f", "nothing else"),
        ("NV910", f"{place}: .factors.cpu.kind", "AuthenticAMD 26 2", "GenuineIntel 6 151"),
    ]
