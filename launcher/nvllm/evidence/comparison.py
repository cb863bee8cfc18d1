"""The comparison of arms: effects of the sentinels with intervals, and what follows from them.

The unit of observation follows the measure. Whether an answer is correct is decided by the question, so differences
are taken for each question and runs only average them; runs with the same output are one. How fast tokens come depends
on the host's moment, so each run, in a fresh container, is one observation, and arms are compared within a run.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nvllm.evidence import harness, intervals, samples
from nvllm.evidence.arms import Arm
from nvllm.evidence.intervals import Estimate
from nvllm.evidence.records import (
    COMPARISON_SCHEMA,
    Answered,
    ArmSummary,
    Comparison,
    Effect,
    FactorFinding,
    Finding,
    LegVerdict,
    Outcome,
)
from nvllm.pages.page import shown

LEVEL = 0.95

CORRECT, LENGTH, SPEED = "correct", "tokens per answer", "tokens per second"
"""The measures of an ablation. The first two are differences, over questions; the last is a ratio, over runs."""
_FEW_RUNS = 3
"""Below so many runs the interval of a speed is too wide to find anything but large effects."""


@dataclass(frozen=True, slots=True)
class ArmLegs:
    """The legs of an arm: its NAME, the ablated sentinels that are ON, and verdict and answers of each run."""

    name: str
    on: Arm
    legs: tuple[tuple[LegVerdict, tuple[Answered, ...]], ...]

    @property
    def valid(self) -> tuple[tuple[LegVerdict, tuple[Answered, ...]], ...]:
        return tuple(leg for leg in self.legs if leg[0].outcome != "invalid")

    @property
    def sampled(self) -> tuple[tuple[LegVerdict, tuple[Answered, ...]], ...]:
        """The valid legs, one of each different output."""
        return tuple(self.valid[place] for place in samples.distinct([verdict.output for verdict, _ in self.valid]))

    @property
    def outcome(self) -> Outcome:
        """Invalid if the harness of any leg failed: what made one leg invalid may have gone unseen in another."""
        outcomes = {verdict.outcome for verdict, _ in self.legs}
        return "invalid" if "invalid" in outcomes or not outcomes else "failed" if "failed" in outcomes else "passed"


def compare(arms: Sequence[ArmLegs]) -> Comparison:
    """Return the comparison of ARMS. An arm that is invalid is listed, and left out of every effect."""
    usable = {frozenset(arm.on): arm for arm in arms if arm.outcome != "invalid"}
    factors = sorted({name for arm in arms for name in arm.on})
    combined = [one for size in (1, 2) for one in itertools.combinations(factors, size)]
    found = [(factors_of, groups) for factors_of in combined if (groups := _pairs(usable, factors_of))]
    count = sum(len(_measures(factors_of)) for factors_of, _ in found)
    level = 1 - (1 - LEVEL) / max(1, count)
    effects = [
        _effect(" x ".join(factors_of), measure, _estimate(measure, groups, level))
        for factors_of, groups in found
        for measure in _measures(factors_of)
    ]
    effects = adjusted(effects)
    summaries = tuple(summary(arm) for arm in arms)
    findings = tuple(_finding(name, [one for one in effects if one.factor == name]) for name in factors)
    said = (*notes(arms, count), *replicas(arms))
    return Comparison(COMPARISON_SCHEMA, LEVEL, summaries, tuple(effects), findings, said)


def summary(arm: ArmLegs) -> ArmSummary:
    """Return what the legs of ARM show."""
    shares = [_shares([answers]) for _, answers in arm.sampled]
    means = [statistics.fmean(one.values()) for one in shares if one]
    correct = statistics.fmean(means) if means else 0.0
    questions = max((len(one) for one in shares), default=0)
    low, high = intervals.share(correct * questions, questions, LEVEL)
    tokens = sum(verdict.tokens for verdict, _ in arm.valid)
    seconds = sum(verdict.seconds for verdict, _ in arm.valid)
    asked = sum(verdict.asked for verdict, _ in arm.valid)
    return ArmSummary(
        name=arm.name,
        outcome=arm.outcome,
        runs=len(arm.legs),
        valid=len(arm.valid),
        samples=len(arm.sampled),
        correct=correct,
        low=low,
        high=high,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        tokens_per_answer=tokens / asked if asked else 0.0,
        seconds=seconds,
        figures=_figures(arm),
    )


def correct(one: ArmLegs, other: ArmLegs, level: float) -> Estimate:
    """Return by how much the share of correct answers of OTHER differs from that of ONE."""
    return _estimate(CORRECT, [((1, other), (-1, one))], level)


def _figures(arm: ArmLegs) -> dict[str, float]:
    """Return the means of the figures that all valid legs of ARM have."""
    found = [verdict.figures for verdict, _ in arm.valid]
    names = [name for name in (found[0] if found else ()) if all(name in one for one in found)]
    return {name: statistics.fmean(one[name] for one in found) for name in names}


# Contrasts

_Group = tuple[tuple[int, ArmLegs], ...]
"""Arms with their signs, whose signed sum is the effect."""


def _pairs(usable: Mapping[frozenset[str], ArmLegs], factors: Sequence[str]) -> list[_Group]:
    """Return each group of arms of USABLE that differ in FACTORS alone: two for one factor, four for two of them."""
    groups = []
    for rest in usable:
        if rest & set(factors):
            continue
        wanted = [
            (len(chosen), rest | set(chosen))
            for size in range(len(factors) + 1)
            for chosen in itertools.combinations(factors, size)
        ]
        if all(arm in usable for _, arm in wanted):
            groups.append(tuple(((-1) ** (len(factors) - size), usable[arm]) for size, arm in wanted))
    return groups


def _measures(factors: Sequence[str]) -> tuple[str, ...]:
    return (CORRECT, SPEED, LENGTH) if len(factors) == 1 else (CORRECT,)


def _estimate(measure: str, groups: Sequence[_Group], level: float) -> Estimate:
    if measure == SPEED:
        return intervals.ratio(list(_by_run(groups)), level)
    if measure == LENGTH:
        return intervals.mean(list(_by_question(groups, _lengths).values()), level)
    arms = len(groups[0])
    # An effect of two factors can be twice as large as a share; the interval's method wants shares.
    scale = arms // 2
    found = intervals.paired_shares([one / scale for one in _by_question(groups, _shares).values()], level)
    low, high = (None if one is None else one * scale for one in (found.low, found.high))
    return replace(found, value=found.value * scale, low=low, high=high)


def _shares(runs: Sequence[Sequence[Answered]]) -> dict[int, float]:
    return _means(runs, lambda one: float(one.correct))


def _lengths(runs: Sequence[Sequence[Answered]]) -> dict[int, float]:
    return _means(runs, lambda one: float(one.tokens))


def _means(runs: Sequence[Sequence[Answered]], value: Callable[[Answered], float]) -> dict[int, float]:
    """Return for each question the mean of VALUE over its answers in RUNS."""
    found: dict[int, list[float]] = {}
    for answers in runs:
        for one in answers:
            found.setdefault(one.id, []).append(value(one))
    return {question: statistics.fmean(values) for question, values in found.items()}


def _by_question(
    groups: Sequence[_Group], value: Callable[[Sequence[Sequence[Answered]]], dict[int, float]]
) -> dict[int, float]:
    """Return for each question that all arms of GROUPS were asked the mean effect on VALUE over GROUPS."""
    of = {id(arm): value([answers for _, answers in arm.sampled]) for group in groups for _, arm in group}
    shared = sorted(set.intersection(*(set(one) for one in of.values())))
    return {
        question: statistics.fmean(sum(sign * of[id(arm)][question] for sign, arm in group) for group in groups)
        for question in shared
    }


def _by_run(groups: Sequence[_Group]) -> Iterator[float]:
    """Yield for each run that all arms of GROUPS have the logarithm by which tokens per second grow."""
    speeds = {
        id(arm): {verdict.run: verdict.tokens / verdict.seconds for verdict, _ in arm.valid if verdict.tokens}
        for group in groups
        for _, arm in group
    }
    for run in sorted(set.intersection(*(set(one) for one in speeds.values()))):
        yield statistics.fmean(sum(sign * math.log(speeds[id(arm)][run]) for sign, arm in group) for group in groups)


def _effect(factor: str, measure: str, found: Estimate) -> Effect:
    unit = "run" if measure == SPEED else "question"
    return Effect(factor, measure, found.value, found.low, found.high, found.p, None, unit, found.observations)


def adjusted(effects: Sequence[Effect]) -> list[Effect]:
    """Return EFFECTS with their p-values corrected for the number of them."""
    known = [one for one in effects if one.p is not None]
    values = dict(zip(map(id, known), intervals.holm([one.p for one in known if one.p is not None]), strict=True))
    return [replace(one, adjusted=values.get(id(one))) for one in effects]


# Findings


def _sign(effects: Sequence[Effect], measure: str) -> int | None:
    """Return 1 if MEASURE grows, -1 if it shrinks, 0 if no difference was found, None if none could be."""
    found = next((one for one in effects if one.measure == measure), None)
    if found is None or found.adjusted is None:
        return None
    if found.adjusted >= 1 - LEVEL:
        return 0
    return 1 if found.estimate > (1 if measure == SPEED else 0) else -1


def _finding(factor: str, effects: Sequence[Effect]) -> FactorFinding:
    """Return what EFFECTS say of FACTOR. Fewer tokens in less time are no win: only tokens per second are."""
    correct, speed, length = (_sign(effects, one) for one in (CORRECT, SPEED, LENGTH))
    if correct is None:
        return FactorFinding(factor, "unknown", "no two valid arms differ in it alone")
    finding: Finding
    if correct:
        finding = "win" if correct > 0 else "loss"
        text = f"{'more' if correct > 0 else 'fewer'} correct answers"
    elif speed:
        finding = "win" if speed > 0 else "loss"
        text = f"{'more' if speed > 0 else 'fewer'} tokens per second, answers as correct"
    elif length:
        finding = "shorter generations" if length < 0 else "longer generations"
        text = f"answers are {'shorter' if length < 0 else 'longer'}, tokens come no faster: the time saved is no win"
        text = text if length < 0 else "answers are longer, tokens come no slower"
    else:
        finding, text = "neutral within noise", "no difference found"
    limit = next((one for one in effects if one.measure == CORRECT and one.low is not None), None)
    if finding == "neutral within noise" and limit is not None and limit.low is not None and limit.high is not None:
        text += f"; the share of correct answers changes by {limit.low:+.1%} to {limit.high:+.1%}"
    if speed is None:
        text += "; too few runs to compare speed"
    return FactorFinding(factor, finding, text)


def notes(arms: Sequence[ArmLegs], effects: int) -> Iterator[str]:
    """Yield what to be wary of in a comparison of ARMS with so many EFFECTS."""
    for arm in arms:
        if not arm.legs:
            yield f"{arm.name} is invalid, and left out of every effect: no run of it is complete"
        elif arm.outcome == "invalid":
            wrong = harness.broken(one for verdict, _ in arm.legs for one in verdict.checks)
            reasons = {verdict.reason for verdict, _ in arm.legs if verdict.outcome == "invalid" and verdict.reason}
            yield f"{arm.name} is invalid, and left out of every effect: {shown(wrong or '; '.join(sorted(reasons)))}"
    runs = min((len(arm.valid) for arm in arms if arm.outcome != "invalid"), default=0)
    if 0 < runs < _FEW_RUNS:
        text = (
            "one run of each arm: no interval" if runs == 1 else f"{runs} runs of each arm: only large differences show"
        )
        yield f"speed rests on {text}"
    if effects > 1:
        yield f"intervals and p-values are corrected for {effects} effects (Bonferroni, Holm)"


def replicas(arms: Sequence[ArmLegs]) -> Iterator[str]:
    """Yield for each of ARMS whose runs gave fewer outputs than there are runs that they do."""
    for arm in arms:
        if len(arm.sampled) < len(arm.valid):
            yield (
                f"{arm.name}: {len(arm.valid)} runs, {len(arm.sampled)} different outputs; identical runs are one "
                "sample of what is correct"
            )
