"""The comparison of a bench or a sweep: each figure of one profile against that of the first one, run by run.

The legs of a run stand next to each other in time, in an order that turns from run to run. So the ratio within a run is
free of what the host does over hours, and the interval is over runs. Correct answers are compared over questions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nvllm.evidence import comparison, intervals
from nvllm.evidence.comparison import CORRECT, LEVEL, ArmLegs
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import COMPARISON_SCHEMA, Comparison, Effect, FactorFinding, Finding

_EQUAL = 1.25
_EQUAL_SHARE = 0.1
"""A ratio, or a difference of shares, beyond this is a difference: an interval that reaches it cannot say that two
profiles are equal."""


def compare(arms: Sequence[ArmLegs], measures: Sequence[str] = tuple(PRIMARY)) -> Comparison:
    """Return the comparison of ARMS by MEASURES: the first is what the others are held against.

    One arm alone is only described.
    """
    pairs = [(arms[0], other) for other in arms[1:] if "invalid" not in (arms[0].outcome, other.outcome)]
    count = len(pairs) * len(measures)
    level = 1 - (1 - LEVEL) / max(1, count)
    effects = comparison.adjusted([_effect(*pair, measure, level) for pair in pairs for measure in measures])
    factors = [factor_of(arms[0].name, other.name) for other in arms[1:]]
    findings = tuple(_finding(factor, [one for one in effects if one.factor == factor]) for factor in factors)
    summaries = tuple(comparison.summary(arm) for arm in arms)
    notes = (*comparison.notes(arms, count), *(comparison.replicas(arms) if CORRECT in measures else ()))
    return Comparison(COMPARISON_SCHEMA, LEVEL, summaries, tuple(effects), findings, notes)


def factor_of(first: str, other: str) -> str:
    """Return what the comparison of the arm OTHER with the FIRST is called."""
    return f"{other} / {first}"


def _effect(first: ArmLegs, other: ArmLegs, measure: str, level: float) -> Effect:
    if measure == CORRECT:
        estimate, unit = comparison.correct(first, other, level), "question"
    else:
        estimate, unit = intervals.ratio(list(_logarithms(first, other, measure)), level), "run"
    return comparison.effect(factor_of(first.name, other.name), measure, estimate, unit)


def _logarithms(first_arm: ArmLegs, other_arm: ArmLegs, name: str) -> Iterator[float]:
    """Yield for each run that both arms have the logarithm of the ratio of the figure NAME."""
    first, second = (
        {verdict.run: verdict.figures[name] for verdict, _ in arm.valid if verdict.figures.get(name, 0) > 0}
        for arm in (first_arm, other_arm)
    )
    for run in sorted(first.keys() & second.keys()):
        yield math.log(second[run] / first[run])


def _finding(factor: str, effects: Sequence[Effect]) -> FactorFinding:
    known = [one for one in effects if one.adjusted is not None]
    if not any(one.measure != CORRECT for one in known):
        return FactorFinding(factor, "unknown", "fewer than two runs that both profiles have, or an invalid arm")
    significant = [one for one in known if one.adjusted is not None and one.adjusted < 1 - LEVEL]
    better = [one for one in significant if _better(one)]
    finding: Finding = "neutral within noise"
    if significant:
        finding = "win" if len(better) == len(significant) else "loss" if not better else "mixed"
    text = "; ".join(_text(one) for one in significant or known if one.low is not None and one.high is not None)
    if not significant and any(_wide(one) for one in known):
        return FactorFinding(factor, "unknown", f"too noisy to tell: {text}")
    return FactorFinding(factor, finding, text or "no interval")


def _better(effect: Effect) -> bool:
    """Return whether EFFECT is one that people want."""
    return effect.estimate > 0 if effect.measure == CORRECT else (effect.estimate > 1) == PRIMARY[effect.measure]


def _text(effect: Effect) -> str:
    if effect.measure == CORRECT:
        return f"{CORRECT} {effect.estimate:+.1%} ({effect.low:+.1%} to {effect.high:+.1%})"
    return f"{effect.measure} x{effect.estimate:.3f} ({effect.low:.3f} to {effect.high:.3f})"


def _wide(effect: Effect) -> bool:
    """Return whether the interval of EFFECT holds values that nobody would call equal."""
    if effect.low is None or effect.high is None:
        return True
    if effect.measure == CORRECT:
        return max(effect.high, -effect.low) > _EQUAL_SHARE
    return effect.high > _EQUAL or effect.low < 1 / _EQUAL
