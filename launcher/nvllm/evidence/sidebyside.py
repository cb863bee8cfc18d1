"""The comparison of a bench: each figure of one profile against that of another, run by run.

The legs of a run stand next to each other in time, first one profile, then the other, and the other way round in the
next run. So the ratio within a run is free of what the host does over hours, and the interval is over runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nvllm.evidence import comparison, intervals
from nvllm.evidence.comparison import LEVEL, ArmLegs
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import COMPARISON_SCHEMA, Comparison, Effect, FactorFinding, Finding

_EQUAL = 1.25
"""A ratio beyond this is a difference: an interval that reaches it cannot say that two profiles are equal."""


def compare(arms: Sequence[ArmLegs]) -> Comparison:
    """Return the comparison of ARMS: the first is what the others are held against. One alone is only described."""
    pairs = [(arms[0], other) for other in arms[1:] if "invalid" not in (arms[0].outcome, other.outcome)]
    count = len(pairs) * len(PRIMARY)
    level = 1 - (1 - LEVEL) / max(1, count)
    effects = comparison.adjusted([_effect(one, other, name, level) for one, other in pairs for name in PRIMARY])
    names = [_name(arms[0], other) for other in arms[1:]]
    findings = tuple(_finding(name, [one for one in effects if one.factor == name]) for name in names)
    summaries = tuple(comparison.summary(arm) for arm in arms)
    notes = tuple(comparison.notes(arms, count))
    return Comparison(COMPARISON_SCHEMA, LEVEL, summaries, tuple(effects), findings, notes)


def _name(one: ArmLegs, other: ArmLegs) -> str:
    return f"{other.name} / {one.name}"


def _effect(one: ArmLegs, other: ArmLegs, name: str, level: float) -> Effect:
    found = intervals.ratio(list(_logarithms(one, other, name)), level)
    return Effect(_name(one, other), name, found.value, found.low, found.high, found.p, None, "run", found.observations)


def _logarithms(one: ArmLegs, other: ArmLegs, name: str) -> Iterator[float]:
    """Yield for each run that both arms have the logarithm of the ratio of the figure NAME."""
    first, second = (
        {verdict.run: verdict.figures[name] for verdict, _ in arm.valid if verdict.figures.get(name, 0) > 0}
        for arm in (one, other)
    )
    for run in sorted(first.keys() & second.keys()):
        yield math.log(second[run] / first[run])


def _finding(factor: str, effects: Sequence[Effect]) -> FactorFinding:
    known = [one for one in effects if one.adjusted is not None]
    if not known:
        return FactorFinding(factor, "unknown", "fewer than two runs that both profiles have, or an invalid arm")
    found = [one for one in known if one.adjusted is not None and one.adjusted < 1 - LEVEL]
    better = [one for one in found if (one.estimate > 1) == PRIMARY[one.measure]]
    finding: Finding = "neutral within noise"
    if found:
        finding = "win" if len(better) == len(found) else "loss" if not better else "mixed"
    text = "; ".join(
        f"{one.measure} x{one.estimate:.3f} ({one.low:.3f} to {one.high:.3f})"
        for one in found or known
        if one.low is not None and one.high is not None
    )
    if not found and any(_wide(one) for one in known):
        return FactorFinding(factor, "unknown", f"too noisy to tell: {text}")
    return FactorFinding(factor, finding, text or "no interval")


def _wide(effect: Effect) -> bool:
    """Return whether the interval of EFFECT holds ratios that nobody would call equal."""
    return effect.low is None or effect.high is None or effect.high > _EQUAL or effect.low < 1 / _EQUAL
