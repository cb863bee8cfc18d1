"""ANALYSIS.md: what was asked, what holds, what does not, and the limits of both, in words made from the values.

The numbers are in summary.md and comparison.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from nvllm.evidence import summary
from nvllm.evidence.records import Comparison, FactorFinding, Finding, Outcome, RunManifest


def markdown(manifest: RunManifest, comparison: Comparison) -> str:
    """Return what follows from COMPARISON, of the run of MANIFEST, as Markdown."""
    parts = (
        ("What was asked", iter([question(manifest, comparison)])),
        ("What holds", _holding(comparison)),
        ("What nobody knows yet, and what does not hold", _failing(comparison)),
        ("Limits", _limits(manifest, comparison)),
    )
    sections = [f"## {title}\n\n{_list(lines)}" for title, lines in parts]
    if comparison.flipped:
        flipped = [summary.flipped_table(comparison).markdown, summary.unlisted_text(comparison)]
        sections += ["## Questions that two arms do not answer alike", *filter(None, flipped)]
    if comparison.compiles:
        sections += ["## Artifacts of one compile key", summary.compile_table(comparison).markdown]
    if comparison.engines:
        tables = [summary.engine_table(comparison).markdown, summary.MARKS, summary.question_table(comparison).markdown]
        sections += ["## Runs in one engine", *tables]
    return "\n\n".join([f"# {summary.title(manifest)}: what follows", *sections]) + "\n"


def question(manifest: RunManifest, comparison: Comparison) -> str:
    """Return what COMPARISON, of the run of MANIFEST, answers."""
    return comparison.question or " ".join(_asked(manifest))


def answer(comparison: Comparison) -> list[tuple[Finding | Outcome, str]]:
    """Return what COMPARISON answers: the finding of each factor, or the outcome of each arm, and its part in words."""
    if comparison.findings:
        return [(finding.finding, _in_short(finding)) for finding in comparison.findings]
    return [
        (arm.outcome, f"{arm.name} {_OUTCOMES[arm.outcome]} in {arm.runs} run{'' if arm.runs == 1 else 's'}")
        for arm in comparison.arms
    ]


def _in_short(finding: FactorFinding) -> str:
    """Return FINDING as a part of the answer: what was found, and what would decide the rest."""
    open_part = finding.takes if finding.finding == "unknown" else f"a part is not known yet: {finding.takes}"
    details = "; ".join(part for part in (finding.brief, finding.takes and open_part) if part)
    return f"{finding.factor} is {_IS.get(finding.finding, finding.finding)}{f': {details}' if details else ''}"


_IS: Mapping[Finding, str] = MappingProxyType(
    {
        "win": "a win",
        "loss": "a loss",
        "mixed": "better in some figures and worse in others",
        "shorter generations": "neither, it makes answers shorter",
        "longer generations": "neither, it makes answers longer",
        "neutral": "neutral, within the margins",
        "above the floor": "above it",
        "below the floor": "below it",
        "unknown": "not known yet",
    }
)
_OUTCOMES: Mapping[Outcome, str] = MappingProxyType(
    {"passed": "passed", "failed": "failed", "invalid": "proves nothing"}
)


def _list(lines: Iterator[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "Nothing."


def _asked(manifest: RunManifest) -> Iterator[str]:
    """Yield the question of a run in words."""
    names = [arm.name for arm in manifest.arms]
    if any(arm.artifact for arm in manifest.arms):
        yield f"Does it matter which of {len(names)} compiles of one key is loaded?"
    elif manifest.kind == "ablate":
        arms = f"{len(names)} arms: {', '.join(names)}"
        yield f"What does the sentinel of each of these patches change: {', '.join(manifest.ablated)}? {arms}."
    elif len(names) > 1:
        measured = "fast" if manifest.kind == "bench" else "fast, and how often right,"
        yield f"How {measured} is {' and '.join(names[1:])}, held against {names[0]}?"
    elif manifest.kind == "bench":
        yield f"How fast is {names[0]}?"
    else:
        yield f"How often is {names[0]} right?"


def _holding(comparison: Comparison) -> Iterator[str]:
    """Yield every finding that is one, and every arm that passed where there is nothing to compare it with."""
    yield from (_finding_text(finding) for finding in comparison.findings if finding.finding != "unknown")
    if not comparison.findings:
        passed = [arm for arm in comparison.arms if arm.outcome == "passed"]
        yield from (f"{arm.name} passed in all of {arm.runs} runs." for arm in passed)


def _finding_text(finding: FactorFinding) -> str:
    artifacts = f" Of compiled code: {finding.artifacts}." if finding.artifacts else ""
    return f"**{finding.factor}**: {finding.finding}; {finding.text}.{artifacts}"


def _failing(comparison: Comparison) -> Iterator[str]:
    """Yield each comparison without a finding, and each arm that is invalid or failed."""
    yield from (_finding_text(finding) for finding in comparison.findings if finding.finding == "unknown")
    for arm in comparison.arms:
        if arm.outcome == "failed":
            yield f"{arm.name} failed: {100 * arm.correct:.1f} % correct, which is below the floor."
        elif arm.outcome == "invalid":
            yield f"{arm.name} is invalid: {arm.runs - arm.valid} of its {arm.runs} runs prove nothing."


def _limits(manifest: RunManifest, comparison: Comparison) -> Iterator[str]:
    """Yield what a reader must not conclude."""
    yield from (f"{note}." for note in comparison.notes)
    complete = sum(arm.runs for arm in comparison.arms)
    planned = manifest.runs * len(manifest.arms)
    if complete < planned:
        yield f"{planned - complete} of {planned} legs were not run."
    if manifest.probe.questions:
        yield f"Answers were counted for {manifest.probe.questions} questions; other questions were not asked."
    where = ", ".join([manifest.host.processor, *manifest.host.gpus])
    if manifest.other_hosts:
        yield f"{summary.mixed_text(manifest)}. Legs may differ because their hosts do."
        return
    yield f"All of it was seen on one host ({where}); another one was not tried."
