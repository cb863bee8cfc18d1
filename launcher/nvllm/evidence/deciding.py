"""Findings: what the effects of a comparison say together. Every command finds by the functions here, and no other.

A difference is a finding if its p-value, corrected for all effects, says so. That there is none is a finding too, and
needs proof as well: every interval, corrected, lies within the margin. All else is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from nvllm.evidence import intervals
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import ArmSummary, Effect, FactorFinding, Finding, Margins

LEVEL = 0.95
"""The level of all intervals of a run together (`comparison.py` shares its error between them)."""

CORRECT, LENGTH, SPEED = "correct", "tokens per answer", "tokens per second"
"""The measures of answers. The first two are differences, over questions; the last is a ratio, over runs."""

MORE_IS_BETTER: Mapping[str, bool] = MappingProxyType({CORRECT: True, SPEED: True, **PRIMARY})
"""The measures of which more, or less, is better. The length of an answer is not one of them."""


_NAMED = 8
"""Effects that are not known and are named in a finding; the table has all."""


def margin_of(measure: str, margins: Margins, typical: float = 1.0) -> float:
    """Return how much MEASURE may differ and still count as the same. An answer has the TYPICAL length."""
    if measure == CORRECT:
        return margins.questions
    return margins.length * typical if measure == LENGTH else margins.speed


def decide(factor: str, effects: Sequence[Effect]) -> FactorFinding:
    """Return what EFFECTS, all those of FACTOR, say of it. One that has another name is named."""
    if not effects:
        return FactorFinding(factor, "unknown", "nothing to compare: an arm is invalid, or no two differ in this alone")
    differing = [effect for effect in effects if differs(effect)]
    signs = {_better(effect) for effect in differing if effect.measure in MORE_IS_BETTER}
    finding: Finding
    if signs:
        finding = "mixed" if len(signs) == 2 else "win" if True in signs else "loss"
    elif differing:
        finding = "longer generations" if differing[0].estimate > 0 else "shorter generations"
    else:
        finding = "neutral" if all(within(effect) for effect in effects) else "unknown"
    named = {effect: "" if effect.factor == factor else f"{effect.factor}: " for effect in effects}
    parts, takes = [f"{named[effect]}{_difference(effect)}" for effect in differing], ""
    if finding == "neutral":
        parts += [f"{named[effect]}{_estimate_text(effect)}, within {margin_text(effect)}" for effect in effects]
    elif open_effects := [effect for effect in effects if effect not in differing and not within(effect)]:
        seen = [f"{named[effect]}{_estimate_text(effect)}, margin {margin_text(effect)}" for effect in open_effects]
        more = f", and {len(seen) - _NAMED} more" if len(seen) > _NAMED else ""
        takes = would_take(open_effects)
        parts += [f"not known: {', '.join(seen[:_NAMED])}{more}", takes]
    brief = ", ".join(dict.fromkeys(_kind(effect) for effect in differing))
    return FactorFinding(factor, finding, "; ".join(parts), takes, brief=brief)


def against_floor(arm: ArmSummary, questions: int, floor: float) -> FactorFinding:
    """Return whether the share of correct answers of ARM, asked QUESTIONS, is above FLOOR, a part of 1, in general."""
    factor = f"{arm.name} against the floor of {100 * floor:g} %"
    share = f"{100 * arm.correct:.1f} % correct, {100 * arm.low:.1f} to {100 * arm.high:.1f} %"
    if not questions or arm.outcome == "invalid":
        return FactorFinding(factor, "unknown", "no valid run with questions")
    if arm.low >= floor or arm.high < floor:
        finding: Finding = "above the floor" if arm.low >= floor else "below the floor"
        return FactorFinding(factor, finding, share, brief=share)
    needed = intervals.share_needed(arm.correct * questions, questions, LEVEL, floor)
    more = f"about {needed} questions" if needed is not None else "more questions than there are"
    takes = f"it would take {more}, if others are answered as these"
    return FactorFinding(factor, "unknown", f"{share}; {takes}", takes)


def differs(effect: Effect) -> bool:
    """Return whether EFFECT is a difference, and no noise."""
    return effect.adjusted is not None and effect.adjusted < 1 - LEVEL


def within(effect: Effect) -> bool:
    """Return whether the whole interval of EFFECT lies within its margin."""
    if effect.low is None or effect.high is None:
        return False
    if is_difference(effect.measure):
        return effect.low >= -effect.margin and effect.high <= effect.margin
    return effect.low >= 1 / (1 + effect.margin) and effect.high <= 1 + effect.margin


def is_difference(measure: str) -> bool:
    """Return whether an effect on MEASURE is a difference. It is a ratio for any other."""
    return measure in (CORRECT, LENGTH)


def would_take(effects: Sequence[Effect]) -> str:
    """Return what would decide EFFECTS, that do not: runs and questions, as far as they show it."""
    counts: dict[str, int] = {}
    for effect in effects:
        if effect.needed is not None:
            counts[effect.needed_unit] = max(counts.get(effect.needed_unit, 0), effect.needed)
    needs = [f"{count} {unit}s{' of each arm' if unit == 'run' else ''}" for unit, count in sorted(counts.items())]
    text = f"it would take about {' and '.join(needs)}, if more are like these" if needs else ""
    open_effects = [effect for effect in effects if effect.needed is None]
    if any(effect.low is None for effect in open_effects):
        needs_noise = "at least 3 runs, which are not all the same, must show how much runs differ"
        return f"{text}; {needs_noise}" if text else needs_noise
    if open_effects:
        return (
            f"{text}; one figure is close, and some more would decide it" if text else "it is close: some more decide"
        )
    return text


def effect_text(effect: Effect, value: float) -> str:
    """Return VALUE, of EFFECT's estimate or interval, in its unit."""
    if not is_difference(effect.measure):
        return f"x{value:.3f}" if 0.001 <= value < 1000 else f"x{value:.3g}"
    scale, unit = (100, "points") if effect.measure == CORRECT else (1, "tokens")
    return f"{round(scale * value, 1) + 0.0:+.1f} {unit}"  # 0.0 makes +0.0 of -0.0


def interval_text(effect: Effect) -> str:
    """Return the interval of EFFECT."""
    if effect.low is None or effect.high is None:
        return "too few different runs"
    return f"{effect_text(effect, effect.low)} to {effect_text(effect, effect.high)}"


def margin_text(effect: Effect) -> str:
    """Return the margin of EFFECT."""
    if effect.measure == LENGTH:
        return f"{effect.margin:.1f} tokens"
    return f"{100 * effect.margin:g} {'points' if effect.measure == CORRECT else '%'}"


def _better(effect: Effect) -> bool:
    """Return whether EFFECT is one that people want."""
    return (effect.estimate > (0 if is_difference(effect.measure) else 1)) == MORE_IS_BETTER[effect.measure]


def _estimate_text(effect: Effect) -> str:
    return f"{effect.measure} {effect_text(effect, effect.estimate)} ({interval_text(effect)})"


def _kind(effect: Effect) -> str:
    """Return what kind of difference EFFECT is."""
    if effect.measure == CORRECT:
        return "more correct answers" if effect.estimate > 0 else "fewer correct answers"
    if effect.measure == LENGTH:
        return "longer answers, which is no loss" if effect.estimate > 0 else "shorter answers, which is no win"
    return "faster" if _better(effect) else "slower"


def _difference(effect: Effect) -> str:
    return f"{_kind(effect)}: {_estimate_text(effect)}" + (f", within {margin_text(effect)}" if within(effect) else "")
