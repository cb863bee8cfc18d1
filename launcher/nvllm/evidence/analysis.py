"""ANALYSIS.md: what was asked, what holds, what does not, and the limits of both, in words made from the values.

The numbers are in summary.md and comparison.json.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvllm.evidence import summary
from nvllm.evidence.records import Comparison, RunManifest

_HOLDS = ("win", "loss", "mixed", "shorter generations", "longer generations", "neutral within noise")


def markdown(manifest: RunManifest, found: Comparison) -> str:
    """Return what follows from what the run of MANIFEST FOUND, as Markdown."""
    parts = (
        ("What was asked", _asked(manifest)),
        ("What holds", _holding(found)),
        ("What does not", _failing(found)),
        ("Limits", _limits(manifest, found)),
    )
    sections = [f"## {title}\n\n{_list(lines)}" for title, lines in parts]
    return "\n\n".join([f"# {summary.title(manifest)}: what follows", *sections]) + "\n"


def _list(lines: Iterator[str]) -> str:
    return "\n".join(f"- {one}" for one in lines) or "Nothing."


def _asked(manifest: RunManifest) -> Iterator[str]:
    """Yield the question of a run in words."""
    names = [one.name for one in manifest.arms]
    if manifest.kind == "ablate":
        arms = f"{len(names)} arms: {', '.join(names)}"
        yield f"What does the sentinel of each of these patches change: {', '.join(manifest.ablated)}? {arms}."
    elif len(names) > 1:
        measured = "fast, and how often right," if manifest.kind == "sweep" else "fast"
        yield f"How {measured} is {' and '.join(names[1:])}, held against {names[0]}?"
    elif manifest.kind == "bench":
        yield f"How fast is {names[0]}?"
    else:
        yield f"How often is {names[0]} right?"


def _holding(found: Comparison) -> Iterator[str]:
    """Yield every finding that is one, and every arm that passed where there is nothing to compare it with."""
    yield from (f"**{one.factor}**: {one.finding}; {one.text}." for one in found.findings if one.finding in _HOLDS)
    if not found.findings:
        yield from (f"{one.name} passed in all of {one.runs} runs." for one in found.arms if one.outcome == "passed")


def _failing(found: Comparison) -> Iterator[str]:
    """Yield each comparison without a finding, and each arm that is invalid or failed."""
    yield from (f"**{one.factor}**: {one.finding}; {one.text}." for one in found.findings if one.finding not in _HOLDS)
    for one in found.arms:
        if one.outcome == "failed":
            yield f"{one.name} failed: {100 * one.correct:.1f} % correct, which is below the floor."
        elif one.outcome == "invalid":
            yield f"{one.name} is invalid: {one.runs - one.valid} of its {one.runs} runs prove nothing."


def _limits(manifest: RunManifest, found: Comparison) -> Iterator[str]:
    """Yield what a reader must not conclude."""
    yield from (f"{note}." for note in found.notes)
    complete = sum(one.runs for one in found.arms)
    wanted = manifest.runs * len(manifest.arms)
    if complete < wanted:
        yield f"{wanted - complete} of {wanted} legs were not run."
    if manifest.probe.questions:
        yield f"Answers were counted for {manifest.probe.questions} questions; other questions were not asked."
    where = ", ".join([manifest.host.processor, *manifest.host.gpus])
    yield f"All of it was seen on one host ({where}); another one was not tried."
