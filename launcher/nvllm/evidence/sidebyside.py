"""The comparison of a bench or a sweep: each figure of one profile against that of the first one, run by run.

The legs of a run stand next to each other in time, in an order that turns from run to run. So the ratio within a run is
free of what the host does over hours, and the interval is over runs. Correct answers are compared over questions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nvllm.evidence import comparison, deciding, intervals
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.deciding import CORRECT, LEVEL, SPEED
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import COMPARISON_SCHEMA, MARGINS, Comparison, Effect, LegVerdict, Margins


def compare(
    arms: Sequence[ArmLegs],
    margins: Margins = MARGINS,
    measures: Sequence[str] = tuple(PRIMARY),
    error_share: float = 1.0,
) -> Comparison:
    """Return the comparison of ARMS by MEASURES and MARGINS: the first is what the others are held against.

    One arm alone is only described. ERROR_SHARE is as in `comparison.compare`.
    """
    return compare_pairs(arms, [(arms[0], other) for other in arms[1:]], margins, measures, error_share)


def compare_pairs(
    arms: Sequence[ArmLegs],
    pairs: Sequence[tuple[ArmLegs, ArmLegs]],
    margins: Margins,
    measures: Sequence[str],
    error_share: float = 1.0,
) -> Comparison:
    """Return the comparison of ARMS, of each of PAIRS by MEASURES and MARGINS, with ERROR_SHARE of the error."""
    usable = [pair for pair in pairs if "invalid" not in (pair[0].outcome, pair[1].outcome)]
    count = len(usable) * len(measures)
    level = comparison.corrected_level(count, error_share)
    measured = [_effect(*pair, measure, level, margins) for pair in usable for measure in measures]
    effects = comparison.adjusted(measured, error_share)
    factors = [factor_of(first.name, other.name) for first, other in pairs]
    answered = CORRECT in measures
    flips = [
        flip
        for first, other in (usable if answered else ())
        for flip in comparison.flipped(factor_of(first.name, other.name), first, other)
    ]
    return Comparison(
        schema=COMPARISON_SCHEMA,
        level=LEVEL,
        arms=tuple(comparison.summary(arm) for arm in arms),
        effects=tuple(effects),
        findings=tuple(
            deciding.decide(name, [effect for effect in effects if effect.factor == name]) for name in factors
        ),
        notes=(*comparison.notes(arms, count), *(comparison.replicas(arms) if answered else ())),
        flipped=tuple(flips[: comparison.FLIPS]),
        unlisted=max(0, len(flips) - comparison.FLIPS),
    )


def factor_of(first: str, other: str) -> str:
    """Return what the comparison of the arm OTHER with the FIRST is called."""
    return f"{other} / {first}"


def _effect(first: ArmLegs, other: ArmLegs, measure: str, level: float, margins: Margins) -> Effect:
    factor = factor_of(first.name, other.name)
    if measure == CORRECT:
        return comparison.correct(factor, first, other, level, margins)
    estimate = intervals.ratio(list(_logarithms(first, other, measure)), level, margins.speed)
    return comparison.effect(factor, measure, estimate, margins.speed)


def _logarithms(first_arm: ArmLegs, other_arm: ArmLegs, name: str) -> Iterator[float]:
    """Yield for each run that both arms have the logarithm of the ratio of the figure NAME."""
    first, second = (comparison.by_engine(arm, lambda leg: _logarithm(leg, name)) for arm in (first_arm, other_arm))
    for run in sorted(first.keys() & second.keys()):
        yield second[run] - first[run]


def _logarithm(verdict: LegVerdict, name: str) -> float | None:
    """Return the logarithm of the figure NAME of the leg of VERDICT; None if it has none."""
    figure = verdict.figures.get(name, 0.0) if name != SPEED else verdict.rate
    return math.log(figure) if figure > 0 else None
