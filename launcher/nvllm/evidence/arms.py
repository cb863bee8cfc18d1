"""Arms of an ablation: which sets of sentinels are compared, and in which order their legs are run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, TypeAlias

from nvllm.core.refusal import Refusal, refuse_any

Arm: TypeAlias = tuple[str, ...]
"""The ablated sentinels that are on, sorted."""

Design: TypeAlias = Literal["full", "drop-one", "add-one"]

FULL_UP_TO = 4
"""With more sentinels than this, a full design has more than 16 arms, so drop-one is the default."""

_ALL, _NONE = ("all", "both"), ("none", "neither")


def name(arm: Arm) -> str:
    """Return the name of ARM, which is also that of its directory."""
    return "+".join(arm) or _NONE[0]


def designed(design: Design | None, sentinels: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms of DESIGN over SENTINELS; without one, the full design where that is small, else drop-one."""
    factors = tuple(sorted(sentinels))
    chosen = design or ("full" if len(factors) <= FULL_UP_TO else "drop-one")
    if chosen == "full":
        return tuple(arm for size in range(len(factors) + 1) for arm in itertools.combinations(factors, size))
    if chosen == "drop-one":
        return (factors, *(tuple(factor for factor in factors if factor != left) for left in factors))
    return ((), *((factor,) for factor in factors))


def named(text: str, sentinels: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms in TEXT, separated by commas: ``none``, ``all``, or sentinels joined by ``+``.

    Raises Refused NV108 for a sentinel that is not one of SENTINELS, for an arm named twice, and for fewer than two.
    """
    chosen: list[Arm] = []
    refusals: list[Refusal] = []
    cure = f"--arms none,{','.join(sorted(sentinels))},all"
    for word in (item.strip() for item in text.split(",")):
        parts = set(sentinels) if word in _ALL else set() if word in _NONE else set(word.split("+"))
        if parts - set(sentinels):
            expected = f"none, all, or sentinels of --sentinels joined by +: {', '.join(sorted(sentinels))}"
            refusals.append(Refusal("NV108", "--arms", expected, word or "an empty name", cure))
            continue
        arm = tuple(sorted(parts))
        if arm in chosen:
            refusals.append(Refusal("NV108", "--arms", "each arm once", f"{name(arm)} twice", cure))
        chosen.append(arm)
    if len(chosen) < 2 and not refusals:
        refusals.append(Refusal("NV108", "--arms", "at least two arms", text, cure))
    refuse_any(refusals)
    return tuple(chosen)


def runs_of(engine: int, per_engine: int) -> range:
    """Return the numbers of the runs that ENGINE, from 1, is asked, if each engine is asked PER_ENGINE runs."""
    return range((engine - 1) * per_engine + 1, engine * per_engine + 1)


def schedule(count: int, runs: int) -> tuple[tuple[int, int], ...]:
    """Return the order of legs as (arm, run): arms by index below COUNT, runs from 1 to RUNS.

    Each run has every arm once. The order turns from run to run, forwards and backwards in turn, so that a host that
    grows slower with time burdens all arms alike.
    """
    legs = []
    for run in range(1, runs + 1):
        start = (run - 1) // 2 % count
        turned = [*range(start, count), *range(start)]
        legs += [(arm, run) for arm in (turned if run % 2 else reversed(turned))]
    return tuple(legs)
