"""Two runs side by side: each arm of the second one, B, against the arm of that name of the first one, A.

Their legs were not run in turns. What the host did between both runs counts as a difference, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nvllm.core.refusal import Refusal, refuse_any
from nvllm.evidence import alike, sidebyside
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.deciding import CORRECT, SPEED
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import Comparison, RunManifest

_LOADED = ("bench", "sweep")


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its MANIFEST, and its ARMS with their legs."""

    manifest: RunManifest
    arms: Sequence[ArmLegs]


def joined(first: Run, other: Run) -> tuple[Run, Comparison]:
    """Return FIRST and OTHER as one run of all their arms, and the comparison of those with the same name.

    Raises Refused NV108 for runs of two kinds, and for runs without an arm in common.
    """
    kinds = [first.manifest.kind, other.manifest.kind]
    names = [[arm.name for arm in run.arms] for run in (first, other)]
    common = [name for name in names[0] if name in names[1]]
    refusals = []
    cure = "nvllm report --help"
    if kinds[0] != kinds[1]:
        refusals.append(Refusal("NV108", "nvllm report A B", "two runs of one kind", " and ".join(kinds), cure))
    if not common:
        listed = " and ".join(", ".join(each) for each in names)
        refusals.append(Refusal("NV108", "nvllm report A B", "two runs with an arm of one name", listed, cure))
    refuse_any(refusals)
    arms = {
        f"{letter} {arm.name}": replace(arm, name=f"{letter} {arm.name}", on=())
        for letter, run in (("A", first), ("B", other))
        for arm in run.arms
    }
    states = [
        replace(state, name=f"{letter} {state.name}", on=())
        for letter, run in (("A", first), ("B", other))
        for state in run.manifest.arms
    ]
    manifest = replace(
        first.manifest,
        # Sentinels are no longer what is compared: both runs have the same arms.
        kind="eval" if kinds[0] == "ablate" else kinds[0],
        ablated=(),
        arms=tuple(states),
        runs=max(first.manifest.runs, other.manifest.runs),
    )
    pairs = [(arms[f"A {name}"], arms[f"B {name}"]) for name in common]
    compared = sidebyside.compare_pairs([*arms.values()], pairs, first.manifest.margins, _measures(first, other))
    compared = alike.noted(
        compared, [*arms.values()], {sidebyside.factor_of(arm.name, other.name): (arm, other) for arm, other in pairs}
    )
    notes = (*compared.notes, *_notes(first.manifest, other.manifest))
    question = f"How does the run B compare with the run A in {', '.join(common)}?"
    return Run(manifest, [*arms.values()]), replace(compared, notes=notes, question=question)


def _measures(first: Run, other: Run) -> list[str]:
    """Return what both runs measured. Answers are compared if both were asked the same in the same way."""
    speeds = [*PRIMARY] if first.manifest.kind in _LOADED else [SPEED]
    same = first.manifest.probe.sha256 == other.manifest.probe.sha256
    return [*speeds, CORRECT] if same and first.manifest.kind != "bench" else speeds


def _notes(first: RunManifest, other: RunManifest) -> Iterator[str]:
    """Yield what else than the arms differs between the runs FIRST and OTHER."""
    yield "A and B did not take turns: what the host did between them counts as a difference"
    for name, before, now in (
        ("questions, prompt or load", first.probe.sha256[:12], other.probe.sha256[:12]),
        ("build", first.build_hash[:12], other.build_hash[:12]),
        ("processor", first.host.processor, other.host.processor),
        ("GPUs", ", ".join(first.host.gpus) or "none", ", ".join(other.host.gpus) or "none"),
        ("commit", first.host.commit[:12], other.host.commit[:12]),
        ("margins; those of A count", str(first.margins), str(other.margins)),
    ):
        if before != now:
            yield f"A and B have different {name}: {before} and {now}"
