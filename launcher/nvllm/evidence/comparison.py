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
from typing import TypeAlias

from nvllm.evidence import deciding, harness, intervals
from nvllm.evidence.arms import Arm
from nvllm.evidence.deciding import CORRECT, LENGTH, LEVEL, SPEED
from nvllm.evidence.intervals import Estimate
from nvllm.evidence.records import (
    COMPARISON_SCHEMA,
    MARGINS,
    ArmSummary,
    Comparison,
    Effect,
    Flipped,
    LegVerdict,
    Margins,
    Outcome,
)
from nvllm.pages.page import printable
from nvllm.serve import memoryseries
from nvllm.trials.answers import Answered

_UNITS = {CORRECT: "question", LENGTH: "question", SPEED: "run"}
_FEW_RUNS = 3
"""Below so many runs the interval of a speed is too wide to find anything but large effects."""


Leg: TypeAlias = tuple[LegVerdict, tuple[Answered, ...]]
"""The verdict and the answers of one run of an arm."""


@dataclass(frozen=True, slots=True)
class ArmLegs:
    """The LEGS of an arm, one of each run: its NAME, which no other arm has, and the ablated sentinels that are ON."""

    name: str
    on: Arm
    legs: tuple[Leg, ...]

    @property
    def valid(self) -> tuple[Leg, ...]:
        return tuple(leg for leg in self.legs if leg[0].outcome != "invalid")

    @property
    def sampled(self) -> tuple[Leg, ...]:
        """The valid legs, the first of each different output: runs with the same output are one sample."""
        # A deterministic engine gives five identical runs. An interval that counts five of them is too narrow.
        first: dict[str, Leg] = {}
        for leg in self.valid:
            first.setdefault(leg[0].output, leg)
        return tuple(first.values())

    @property
    def outcome(self) -> Outcome:
        """Invalid if the harness of any leg failed: what made one leg invalid may have gone unseen in another."""
        outcomes = {verdict.outcome for verdict, _ in self.legs}
        return "invalid" if "invalid" in outcomes or not outcomes else "failed" if "failed" in outcomes else "passed"


def compare(arms: Sequence[ArmLegs], margins: Margins = MARGINS, error_share: float = 1.0) -> Comparison:
    """Return the comparison of ARMS by MARGINS. An arm that is invalid is listed, and left out of every effect.

    ERROR_SHARE is the part of the error that it may have, if it is one of several looks at a run.
    """
    usable = {frozenset(arm.on): arm for arm in arms if arm.outcome != "invalid"}
    factors = sorted({name for arm in arms for name in arm.on})
    combined = [differing for size in (1, 2) for differing in itertools.combinations(factors, size)]
    contrasts = [(differing, groups) for differing in combined if (groups := _pairs(usable, differing))]
    single = [CORRECT, SPEED, LENGTH] if any(verdict.tokens for arm in arms for verdict, _ in arm.valid) else [CORRECT]
    measured = [
        (" x ".join(differing), measure, groups)
        for differing, groups in contrasts
        for measure in (single if len(differing) == 1 else [CORRECT])
    ]
    level = corrected_level(len(measured), error_share)
    effects = adjusted(
        [_effect(factor, measure, groups, level, margins) for factor, measure, groups in measured], error_share
    )
    flips = [
        flip
        for differing, groups in contrasts
        if len(differing) == 1
        for (_, first), (_, other) in groups
        for flip in flipped(differing[0], first, other)
    ]
    return Comparison(
        schema=COMPARISON_SCHEMA,
        level=LEVEL,
        arms=tuple(summary(arm) for arm in arms),
        effects=tuple(effects),
        findings=tuple(
            deciding.decide(name, [effect for effect in effects if effect.factor == name]) for name in factors
        ),
        notes=(*notes(arms, len(measured)), *replicas(arms)),
        flipped=tuple(flips[:FLIPS]),
        unlisted=max(0, len(flips) - FLIPS),
    )


def summary(arm: ArmLegs) -> ArmSummary:
    """Return what the legs of ARM show."""
    shares = [_shares([answers]) for _, answers in arm.sampled]
    means = [statistics.fmean(sample.values()) for sample in shares if sample]
    correct = statistics.fmean(means) if means else 0.0
    questions = max((len(sample) for sample in shares), default=0)
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
        asked=asked,
        timeouts=sum(answer.timed_out for _, answers in arm.valid for answer in answers),
        memory=memoryseries.extremes(verdict.memory for verdict, _ in arm.legs),
    )


def correct(factor: str, first: ArmLegs, other: ArmLegs, level: float, margins: Margins) -> Effect:
    """Return the effect of FACTOR, by which the share of correct answers of OTHER differs from that of FIRST.

    LEVEL is that of its interval; within MARGINS it counts as none.
    """
    return _effect(factor, CORRECT, [((-1, first), (1, other))], level, margins)


def _figures(arm: ArmLegs) -> dict[str, float]:
    """Return the means of the figures that all valid legs of ARM have."""
    measured = [verdict.figures for verdict, _ in arm.valid]
    names = [name for name in (measured[0] if measured else ()) if all(name in figures for figures in measured)]
    return {name: statistics.fmean(figures[name] for figures in measured) for name in names}


# Contrasts

_Group = tuple[tuple[int, ArmLegs], ...]
"""Arms with their signs, whose signed sum is the effect."""


def _pairs(usable: Mapping[frozenset[str], ArmLegs], factors: Sequence[str]) -> list[_Group]:
    """Return each group of arms of USABLE that differ in FACTORS alone: two for one factor, four for two of them."""
    groups = []
    for rest in usable:
        if rest & set(factors):
            continue
        needed = [
            (len(chosen), rest | set(chosen))
            for size in range(len(factors) + 1)
            for chosen in itertools.combinations(factors, size)
        ]
        if all(arm in usable for _, arm in needed):
            groups.append(tuple(((-1) ** (len(factors) - size), usable[arm]) for size, arm in needed))
    return groups


def _effect(factor: str, measure: str, groups: Sequence[_Group], level: float, margins: Margins) -> Effect:
    """Return the effect of FACTOR on MEASURE over GROUPS; not yet adjusted."""
    margin = deciding.margin_of(measure, margins)
    if measure == SPEED:
        rates = _in_runs(groups, lambda verdict: math.log(verdict.rate) if verdict.rate else None)
        return effect(factor, measure, intervals.ratio(list(rates), level, margin), margin)
    if measure == LENGTH:
        lengths = [value for _, arm in groups[0] for value in _lengths([each for _, each in arm.sampled]).values()]
        typical = statistics.fmean(lengths) if lengths else 0.0
        margin = deciding.margin_of(measure, margins, typical)
        differences = list(_by_question(groups, _lengths).values())
        return effect(factor, measure, intervals.lengths(differences, max(1.0, typical), level, margin), margin)
    # An effect of two factors can be twice as large as a share; the interval's method wants shares.
    scale = len(groups[0]) // 2
    shares = [value / scale for value in _by_question(groups, _shares).values()]
    estimate, by_runs = intervals.paired_shares(shares, level, margin / scale), False
    if any(len(arm.sampled) > 1 for group in groups for _, arm in group):
        runs = [value / scale for value in _in_runs(groups, lambda verdict: verdict.share)]
        estimate, by_runs = intervals.over_runs(estimate, runs, level, margin / scale)
    low, high = (None if limit is None else limit * scale for limit in (estimate.low, estimate.high))
    scaled = replace(estimate, value=estimate.value * scale, low=low, high=high)
    return effect(factor, measure, scaled, margin, "run" if by_runs else "question")


def _shares(runs: Sequence[Sequence[Answered]]) -> dict[int, float]:
    return _means(runs, lambda answer: float(answer.correct))


def _lengths(runs: Sequence[Sequence[Answered]]) -> dict[int, float]:
    return _means(runs, lambda answer: float(answer.tokens))


def _means(runs: Sequence[Sequence[Answered]], value: Callable[[Answered], float]) -> dict[int, float]:
    """Return for each question the mean of VALUE over its answers in RUNS."""
    by_question: dict[int, list[float]] = {}
    for answers in runs:
        for answer in answers:
            by_question.setdefault(answer.id, []).append(value(answer))
    return {question: statistics.fmean(values) for question, values in by_question.items()}


def _by_question(
    groups: Sequence[_Group], value: Callable[[Sequence[Sequence[Answered]]], dict[int, float]]
) -> dict[int, float]:
    """Return for each question that all arms of GROUPS were asked the mean effect on VALUE over GROUPS."""
    of = {arm.name: value([answers for _, answers in arm.sampled]) for group in groups for _, arm in group}
    shared = sorted(set.intersection(*(set(values) for values in of.values())))
    return {
        question: statistics.fmean(sum(sign * of[arm.name][question] for sign, arm in group) for group in groups)
        for question in shared
    }


def by_question(first: ArmLegs, other: ArmLegs) -> dict[int, float]:
    """Return for each question that both arms were asked by how much OTHER answers it rightly more often than FIRST."""
    return _by_question([((-1, first), (1, other))], _shares)


def _in_runs(groups: Sequence[_Group], value: Callable[[LegVerdict], float | None]) -> Iterator[float]:
    """Yield for each run that all arms of GROUPS have the mean effect on VALUE; None is no value."""
    of = {arm.name: by_engine(arm, value) for group in groups for _, arm in group}
    for run in sorted(set.intersection(*(set(runs) for runs in of.values()))):
        yield statistics.fmean(sum(sign * of[arm.name][run] for sign, arm in group) for group in groups)


def by_engine(arm: ArmLegs, value: Callable[[LegVerdict], float | None]) -> dict[int, float]:
    """Return for each engine of ARM the mean of VALUE over its valid runs; None is no value.

    Runs in one engine are not independent of each other, so that an engine is one observation.
    """
    values_of: dict[int, list[float]] = {}
    for verdict, _ in arm.valid:
        if (each := value(verdict)) is not None:
            values_of.setdefault(verdict.in_engine, []).append(each)
    return {engine: statistics.fmean(values) for engine, values in values_of.items()}


def effect(factor: str, measure: str, estimate: Estimate, margin: float, needed_unit: str = "") -> Effect:
    """Return the effect of FACTOR on MEASURE, an ESTIMATE that counts as none within MARGIN; not yet adjusted."""
    unit = _UNITS.get(measure, "run")
    return Effect(
        factor=factor,
        measure=measure,
        estimate=estimate.value,
        low=estimate.low,
        high=estimate.high,
        p=estimate.p,
        adjusted=None,
        unit=unit,
        observations=estimate.observations,
        margin=margin,
        needed=estimate.needed,
        needed_unit=needed_unit or unit,
    )


def corrected_level(effects: int, error_share: float) -> float:
    """Return the level of each interval of so many EFFECTS, so that all together hold with LEVEL, by Bonferroni.

    ERROR_SHARE is the part of the error that they may have.
    """
    return 1 - (1 - LEVEL) * error_share / max(1, effects)


def adjusted(effects: Sequence[Effect], error_share: float) -> list[Effect]:
    """Return EFFECTS with their p-values corrected for the number of them, and for ERROR_SHARE."""
    corrected = iter(intervals.holm([effect.p for effect in effects if effect.p is not None]))
    return [
        replace(effect, adjusted=None if effect.p is None else min(1.0, next(corrected) / error_share))
        for effect in effects
    ]


# Questions that two arms do not answer alike

FLIPS = 200
"""Flipped questions that a comparison lists."""
_END = 300
"""Characters of the end of a text that a flipped question shows: the answer stands there."""


def flipped(factor: str, first: ArmLegs, other: ArmLegs) -> Iterator[Flipped]:
    """Yield each question that FIRST and OTHER, which differ in FACTOR, do not answer equally well."""
    first_of, other_of = _answers_of(first), _answers_of(other)
    for question in sorted(first_of.keys() & other_of.keys()):
        pair = (first_of[question], other_of[question])
        right = tuple(sum(answer.correct for answer in answers) for answers in pair)
        runs = tuple(len(answers) for answers in pair)
        if right[0] * runs[1] == right[1] * runs[0]:
            continue
        better = right[0] * runs[1] > right[1] * runs[0]
        examples = [
            next(answer for answer in answers if answer.correct == wanted_right)
            for answers, wanted_right in zip(pair, (better, not better), strict=True)
        ]
        yield Flipped(
            factor=factor,
            first=first.name,
            other=other.name,
            id=question,
            expected=examples[0].expected,
            right=right,
            runs=runs,
            replies=tuple("timeout" if answer.timed_out else answer.found for answer in examples),
            texts=tuple(answer.text[-_END:] for answer in examples),
        )


def _answers_of(arm: ArmLegs) -> dict[int, list[Answered]]:
    """Return the answers to each question in the different outputs of ARM."""
    answers_of: dict[int, list[Answered]] = {}
    for _, answers in arm.sampled:
        for answer in answers:
            answers_of.setdefault(answer.id, []).append(answer)
    return answers_of


# Notes


def invalid_text(arm: ArmLegs) -> str:
    """Return that ARM is invalid, and why."""
    wrong = harness.broken(check for verdict, _ in arm.legs for check in verdict.checks)
    reasons = {verdict.reason for verdict, _ in arm.legs if verdict.outcome == "invalid" and verdict.reason}
    why = printable(wrong or "; ".join(sorted(reasons))) if arm.legs else "no run of it is complete"
    return f"{arm.name} is invalid, and left out of every effect: {why}"


def notes(arms: Sequence[ArmLegs], effects: int) -> Iterator[str]:
    """Yield what to be wary of in a comparison of ARMS with so many EFFECTS."""
    yield from (invalid_text(arm) for arm in arms if arm.outcome == "invalid")
    engines = [len({verdict.in_engine for verdict, _ in arm.valid}) for arm in arms if arm.outcome != "invalid"]
    runs = min(engines, default=0)
    if 0 < runs < _FEW_RUNS:
        shows = "one run of each arm: no interval"
        yield f"speed rests on {shows if runs == 1 else f'{runs} runs of each arm: only large differences show'}"
    for arm in arms:
        late = sum(answer.timed_out for _, answers in arm.valid for answer in answers)
        if late:
            asked = sum(len(answers) for _, answers in arm.valid)
            yield f"{arm.name}: {late} of {asked} answers ran into the timeout; they count as wrong"
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
    if len(arms) > 1 and all(len(arm.valid) == 1 for arm in arms):
        yield "one run of each arm: whether another run would answer the same is unknown"
