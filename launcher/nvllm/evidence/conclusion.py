"""What follows from the legs of a run: effects of sentinels, or profiles against the first one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nvllm.evidence import alike, comparison, compiles, deciding, drift, grid, looks, sidebyside, trace
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.deciding import CORRECT, LEVEL
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import Comparison, FactorFinding, KernelTable, RunManifest


def of(manifest: RunManifest, arms: Sequence[ArmLegs], tables: Sequence[KernelTable] = ()) -> Comparison:
    """Return the comparison of ARMS, the legs of the run of MANIFEST, with the TABLES of their traces."""
    share = looks.error_share(manifest, arms)
    if manifest.kind not in ("bench", "sweep"):
        described = comparison.compare(arms, manifest.margins, share)
        findings = (*described.findings, *_floors(manifest, described))
        described = replace(described, findings=findings, notes=(*described.notes, *_looks_note(share)))
        described = grid.noted(drift.noted(described, arms, manifest.margins, share), arms)
        if any(arm.artifact for arm in manifest.arms):
            described = compiles.noted(described, arms, manifest.arms, manifest.margins, share)
        drifting = {
            finding.factor: arms[:1] for finding in described.findings if finding.factor not in manifest.ablated
        }
        return alike.noted(described, arms, drifting)
    measures = (*PRIMARY, CORRECT) if manifest.kind == "sweep" else tuple(PRIMARY)
    compared = sidebyside.compare(arms, manifest.margins, measures, share)
    notes = (*compared.notes, *_looks_note(share), *_noise(manifest, compared), *_traces(tables))
    kernels, traced = (
        [trace.together(traces) for traces in trace.by_arm(tables).values()],
        tuple(trace.per_token(tables)),
    )
    compared = replace(compared, notes=notes, kernels=tuple(kernels), common=trace.compared(kernels), traced=traced)
    compared = grid.noted(compared, arms) if manifest.kind == "sweep" else compared
    return alike.noted(compared, arms, {sidebyside.factor_of(arms[0].name, arm.name): (arms[0], arm) for arm in arms})


def _floors(manifest: RunManifest, described: Comparison) -> Iterator[FactorFinding]:
    """Yield for each arm of an evaluation what it says of its floor."""
    floor = manifest.probe.floor
    if manifest.kind == "eval" and floor is not None:
        for arm in described.arms:
            questions = manifest.probe.questions or arm.asked // max(1, arm.valid)
            if questions != 1:  # a program without lines is one answer, which says nothing of a share
                yield deciding.against_floor(arm, questions, floor / 100)


def _looks_note(share: float) -> Iterator[str]:
    """Yield that a comparison with SHARE of the error is one of several looks."""
    if share < 1:
        yield f"the run goes on until it is decided: this look has 1/{round(1 / share)} of the error of {1 - LEVEL:.0%}"


def _traces(tables: Sequence[KernelTable]) -> Iterator[str]:
    """Yield what the TABLES of traces are not."""
    if any(table.on == "cpu" for table in tables):
        yield "the trace has operators of the processor, not kernels of a GPU: there is none here"
    if tables:
        runs = max(len(traces) for traces in trace.by_arm(tables).values())
        legs = "one traced leg, and have no interval" if runs == 1 else f"{runs} traced legs"
        yield f"kernel times are of {legs}; each leg records {tables[0].steps} steps at most"
        without = sorted({table.arm for table in tables if not table.tree})
        if without:
            yield f"traces of {', '.join(without)} loaded no artifact: what such a leg compiles, it compiles for itself"
    if tables and not all(table.tokens for table in tables):
        yield "a trace whose tokens nobody knows has no ms a token: it has as many steps as --trace-steps lets it have"


def _noise(manifest: RunManifest, compared: Comparison) -> Iterator[str]:
    """Yield what COMPARED, the comparison of the run, says of its noise: by a profile that was run twice."""
    first, *others = manifest.arms
    findings = {finding.factor: finding.finding for finding in compared.findings}
    for other in others:
        if other.profile == first.profile:
            yield f"{other.name} is {first.name} once more: any difference between them is noise"
            if findings[sidebyside.factor_of(first.name, other.name)] in ("win", "loss", "mixed"):
                yield f"{other.name} and {first.name} are the same and were found to differ: trust no other finding"
