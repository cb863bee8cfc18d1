"""Drift: whether the runs that one engine was asked, one after the other, are answered alike.

State that builds up in an engine shows in its later runs. So each later run is held against the first one, in which the
engine is fresh: question by question, by the exact sign test, with Holm's correction for all such pairs. Under no drift
the two answers to a question can change places, whatever the share of right answers is, so at most one campaign in
twenty names a run by chance. `tests/unit/evidence/test_drift.py` simulates that, and the power.

With several engines each has its own finding, because one of them may collapse alone. What the number of a run changes
in all of them is one finding more: there an engine is one observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nvllm.evidence import comparison, deciding
from nvllm.evidence.comparison import ArmLegs, Leg
from nvllm.evidence.records import Comparison, EngineRuns, LegVerdict, Margins, RunFigures


@dataclass(frozen=True, slots=True)
class _Pair:
    """A run, OTHER, held against the FIRST one of its engine: a part of FINDING, called FACTOR."""

    finding: str
    factor: str
    first: ArmLegs
    other: ArmLegs


def noted(compared: Comparison, arms: Sequence[ArmLegs], margins: Margins, error_share: float) -> Comparison:
    """Return COMPARED, the comparison of ARMS, with what the runs in each of their engines show.

    These effects have a correction of their own, for their number and ERROR_SHARE: what is drift is another question.
    """
    usable = [arm for arm in arms if arm.outcome != "invalid"]
    pairs = [pair for arm in usable for pair in _pairs(arm, f"{arm.name}, " if len(arms) > 1 else "")]
    level = comparison.corrected_level(len(pairs), error_share)
    measured = [comparison.correct(pair.factor, pair.first, pair.other, level, margins) for pair in pairs]
    effects = comparison.adjusted(
        [replace(effect, needed_unit="engine") if effect.needed_unit == "run" else effect for effect in measured],
        error_share,
    )
    findings = []
    for name in dict.fromkeys(pair.finding for pair in pairs):
        parts = [(pair, effect) for pair, effect in zip(pairs, effects, strict=True) if pair.finding == name]
        decided = deciding.decide(name, [effect for _, effect in parts])
        series = _series([parts[0][0].first, *(pair.other for pair, _ in parts)])
        findings.append(replace(decided, text=f"{series}; {decided.text}", brief=series))
    notes = [f"runs in one engine: {len(pairs)} pairs, each later run against the first one, corrected by themselves"]
    engines = [
        EngineRuns(arm.name, engine, tuple(_figures(verdict) for _, (verdict, _) in sorted(legs.items())))
        for arm in arms
        for engine, legs in _by_turn(arm).items()
    ]
    return replace(
        compared,
        effects=(*compared.effects, *effects),
        findings=(*compared.findings, *findings),
        notes=(*compared.notes, *(notes if pairs else [])),
        engines=tuple(engines),
    )


def _by_turn(arm: ArmLegs) -> dict[int, dict[int, Leg]]:
    """Return the legs of each engine of ARM that was asked several runs, by its number and the run in it."""
    turns: dict[int, dict[int, Leg]] = {}
    for leg in arm.legs:
        if leg[0].engine:
            turns.setdefault(leg[0].engine, {})[leg[0].turn] = leg
    return turns


def _pairs(arm: ArmLegs, prefix: str) -> Iterator[_Pair]:
    """Yield the pairs of each engine of ARM, and of all of them together; PREFIX begins their names."""
    turns = _by_turn(arm)
    for engine, legs in turns.items():
        yield from _against_first(f"{prefix}engine {engine}", {turn: [leg] for turn, leg in legs.items()})
    if len(turns) > 1:
        together: dict[int, list[Leg]] = {}
        for legs in turns.values():
            for turn, leg in legs.items():
                together.setdefault(turn, []).append(leg)
        yield from _against_first(f"{prefix}all {len(turns)} engines", together)


def _against_first(name: str, turns: Mapping[int, Sequence[Leg]]) -> Iterator[_Pair]:
    """Yield each later one of TURNS against the first one: parts of the finding about NAME."""
    last = max(turns)
    for turn in sorted(turns.keys() - {1}):
        if 1 in turns:
            first, other = (ArmLegs(f"run {number}", (), tuple(turns[number])) for number in (1, turn))
            later = f"runs 2 to {last}" if last > 2 else "run 2"
            yield _Pair(f"{name}, {later} / run 1", f"{name}, run {turn} / run 1", first, other)


def _series(runs: Sequence[ArmLegs]) -> str:
    """Return how many answers were right in each of RUNS."""
    verdicts = [[verdict for verdict, _ in run.legs] for run in runs]
    totals = [(sum(verdict.correct for verdict in legs), sum(verdict.asked for verdict in legs)) for legs in verdicts]
    asked = {each for _, each in totals}
    if len(asked) == 1:
        return f"{', '.join(str(right) for right, _ in totals)} of {max(asked)} right, run after run"
    return f"{', '.join(f'{right} of {each}' for right, each in totals)} right, run after run"


def _figures(verdict: LegVerdict) -> RunFigures:
    return RunFigures(
        turn=verdict.turn,
        outcome=verdict.outcome,
        correct=verdict.correct,
        asked=verdict.asked,
        tokens_per_second=verdict.rate,
        kv_usage=verdict.kv_usage,
        peak_memory=verdict.peak_memory,
    )
