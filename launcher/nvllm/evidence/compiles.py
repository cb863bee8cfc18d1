"""Compiles of one key, held against each other: whether it matters which of them an engine loads.

An artifact is *bad* if its starts answer rightly less often than those of the others. Two things can look like that and
are not: engines that answer differently from start to start, and questions that happen to fall on one side. So both
have to be excluded. The starts are rearranged over the artifacts (permutation test of the difference of means, all
rearrangements, or 20,000 drawn by a fixed seed); the questions are counted by the exact sign test, if there is more
than one. The larger of both p-values counts, times the number of artifacts (Bonferroni): so one run in twenty at most
calls an artifact bad where all are alike. The worst is looked at first; one that is bad is no longer one of the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from nvllm.bless import compiled
from nvllm.evidence import comparison, deciding, intervals
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.deciding import CORRECT
from nvllm.evidence.intervals import Estimate
from nvllm.evidence.records import (
    ArmState,
    ArtifactResult,
    ArtifactSpread,
    Comparison,
    Effect,
    FactorFinding,
    Margins,
)

_LOSS = "loss"


def noted(
    compared: Comparison, arms: Sequence[ArmLegs], states: Sequence[ArmState], margins: Margins, error_share: float
) -> Comparison:
    """Return COMPARED, the comparison of ARMS by MARGINS, each of which loaded the artifact of its state in STATES.

    ERROR_SHARE is as in `comparison.compare`.
    """
    usable = [arm for arm in arms if arm.outcome != "invalid" and arm.valid]
    effects, findings = list[Effect](), list[FactorFinding]()
    bad = set[str]()
    for arm in sorted(usable, key=lambda arm: statistics.fmean(_starts(arm) or [0.0])):
        others = [other for other in usable if other.name not in {arm.name, *bad}]
        if not others:
            continue
        effect = _effect(arm, others, margins, usable, error_share)
        finding = deciding.decide(effect.factor, [effect])
        if finding.finding == _LOSS:
            bad.add(arm.name)
            text = f"this artifact is bad, tree {_tree(arm)}: {finding.text}"
            finding = replace(finding, text=text, brief=f"this artifact is bad, tree {_tree(arm)[:12]}")
        effects.append(effect)
        findings.append(finding)
    results = [_result(arm, state.artifact, bad) for arm, state in zip(arms, states, strict=True)]
    spread = _spread(usable)
    return replace(
        compared,
        effects=(*compared.effects, *effects),
        findings=(*compared.findings, *findings),
        notes=(*compared.notes, *_notes(results, spread)),
        compiles=tuple(results),
        spread=spread,
    )


def _effect(
    arm: ArmLegs, others: Sequence[ArmLegs], margins: Margins, compared: Sequence[ArmLegs], error_share: float
) -> Effect:
    """Return by how much the share of right answers of ARM differs from that of OTHERS, all of them among COMPARED.

    Its interval joins that over questions with Student's over starts, whose noise is that within all of these.
    """
    rest = ArmLegs("the others", (), tuple(leg for other_arm in others for leg in other_arm.legs))
    margin = deciding.margin_of(CORRECT, margins)
    level = comparison.corrected_level(len(compared), error_share)
    own, other = _starts(arm), [share for other_arm in others for share in _starts(other_arm)]
    differences = [*comparison.by_question(rest, arm).values()]
    over_questions = intervals.paired_shares(differences, level, margin)
    value, p = statistics.fmean(own) - statistics.fmean(other), intervals.rearranged(own, other)
    estimate, unit = Estimate(value, None, None, None, len(own)), "run"
    if len(differences) > 1:  # of one answer for each start, the starts alone say something
        p = max(p, 1.0 if over_questions.p is None else over_questions.p)
        if len(own) > 1:  # one start shows no noise
            width = _width_over_starts([arm, *others], level) * math.sqrt(1 / len(own) + 1 / len(other))
            estimate, unit = _joined(over_questions, value, width, margin, len(own))
    effect = comparison.effect(f"{arm.name} / the others", CORRECT, estimate, margin, unit)
    return replace(effect, p=p, adjusted=min(1.0, p * len(compared) / error_share))


def _joined(over_questions: Estimate, value: float, width: float, margin: float, starts: int) -> tuple[Estimate, str]:
    """Return the estimate VALUE with the interval OVER_QUESTIONS, WIDTH wider, and what more of would decide it."""
    down, up = (abs(limit - over_questions.value) for limit in (over_questions.low or 0.0, over_questions.high or 0.0))
    low, high = max(-1.0, value - math.hypot(down, width)), min(1.0, value + math.hypot(up, width))
    joined = replace(over_questions, value=value, low=low, high=high)
    if width <= max(down, up):
        return joined, "question"
    # A margin of 0 would need starts without end.
    needed = None if low > 0 or high < 0 or width <= margin else math.ceil(starts * (width / max(margin, 1e-3)) ** 2)
    return replace(joined, needed=needed), "run"


def _width_over_starts(arms: Sequence[ArmLegs], level: float) -> float:
    """Return Student's factor of LEVEL times the standard deviation of the starts within each of ARMS; 0 for one."""
    freedom = sum(len(_starts(arm)) for arm in arms) - len(arms)
    return intervals.student_quantile((1 + level) / 2, freedom) * _within(arms) if freedom > 0 else 0.0


def _within(arms: Sequence[ArmLegs]) -> float:
    """Return the standard deviation of the share of right answers from start to start within each of ARMS."""
    starts = [_starts(arm) for arm in arms]
    freedom = sum(map(len, starts)) - len(starts)
    return math.sqrt(
        sum((share - statistics.fmean(shares)) ** 2 for shares in starts for share in shares) / max(1, freedom)
    )


def _starts(arm: ArmLegs) -> list[float]:
    """Return the share of right answers of each start of ARM."""
    return [*comparison.by_engine(arm, lambda verdict: verdict.share).values()]


def _tree(arm: ArmLegs) -> str:
    return next((verdict.tree for verdict, _ in arm.valid if verdict.tree), "")


def _result(arm: ArmLegs, artifact: int, bad: Collection[str]) -> ArtifactResult:
    key = next((verdict.compile_key for verdict, _ in arm.valid if verdict.tree), "")
    return ArtifactResult(
        arm=arm.name,
        tree=_tree(arm),
        kept=f"artifacts/{compiled.directory_of(key, artifact)}/{_tree(arm)}" if key else "",
        right=tuple(verdict.correct for verdict, _ in arm.valid),
        asked=max((verdict.asked for verdict, _ in arm.valid), default=0),
        outputs=len(arm.sampled),
        bad=arm.name in bad,
    )


def _spread(arms: Sequence[ArmLegs]) -> ArtifactSpread | None:
    """Return how much starts of one artifact of ARMS differ, and artifacts beyond that; None without two of each.

    It is the analysis of variance of one factor: the excess of the mean square between artifacts is divided by how many
    starts each has, and is at least 0.
    """
    starts = [_starts(arm) for arm in arms]
    count = sum(len(shares) for shares in starts)
    if len(starts) < 2 or count <= len(starts):
        return None
    middle = statistics.fmean(share for shares in starts for share in shares)
    within = _within(arms)
    between = sum(len(shares) * (statistics.fmean(shares) - middle) ** 2 for shares in starts) / (len(starts) - 1)
    typical = (count - sum(len(shares) ** 2 for shares in starts) / count) / (len(starts) - 1)
    return ArtifactSpread(math.sqrt(max(0.0, (between - within**2) / typical)), within)


def _notes(results: Sequence[ArtifactResult], spread: ArtifactSpread | None) -> Iterator[str]:
    """Yield what else RESULTS show, of which SPREAD says how much they differ."""
    if spread is not None:
        yield (
            f"share of right answers: standard deviation {100 * spread.between:.1f} points between artifacts, "
            f"{100 * spread.within:.1f} points between starts of one artifact"
        )
    by_tree: dict[str, list[str]] = {}
    for result in results:
        by_tree.setdefault(result.tree, []).append(result.arm)
    for tree, names in by_tree.items():
        if tree and len(names) > 1:
            yield f"{', '.join(names)} are one tree, byte for byte: {tree[:12]}"
    yield from _kept(results)


def _kept(results: Sequence[ArtifactResult]) -> Iterator[str]:
    bad = [result for result in results if result.bad]
    good = [result for result in results if result.tree and not result.bad]
    if bad and good:
        best = max(good, key=lambda result: sum(result.right) / max(1, len(result.right)))
        for word, result in [*(("bad", result) for result in bad), ("good", best)]:
            yield f"kept in the run for study, {word}: {result.kept}"
