"""What a port reports beside the outcomes: what shows them, what was dropped, and what a person must decide. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvllm.patches import rangediff
from nvllm.patches.series import Series
from nvllm.patches.unified import Diff
from nvllm.port.merge import Ported
from nvllm.port.newspec import Need
from nvllm.port.written import Evidence


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One thing that was dropped, or that a person decides: a patch, its file or a place of the spec, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class PortReport:
    """The report of a port. CHANGES is the range-diff, by patch; EVIDENCE is that of `written.evidence`."""

    changes: Mapping[str, Sequence[str]]
    evidence: Evidence
    dropped: Sequence[ReportLine]
    decide: Sequence[ReportLine]


def of(
    series: Series, diffs: Mapping[str, Diff], ported: Sequence[Ported], needs: Sequence[Need], evidence: Evidence
) -> PortReport:
    """Return the report of PORTED, which is SERIES, whose carried patches are DIFFS, on a new source with EVIDENCE.

    NEEDS are those of the spec.
    """
    changes = {
        outcome.id: rangediff.lines(outcome.before, outcome.diff, dict(outcome.renamed))
        for outcome in ported
        if outcome.before is not None and outcome.diff is not None
    }
    dropped, decide = tuple(_dropped(series, diffs, ported)), tuple(_decisions(ported, needs))
    return PortReport(changes, evidence, dropped, decide)


def _dropped(series: Series, diffs: Mapping[str, Diff], ported: Sequence[Ported]) -> Iterator[ReportLine]:
    """Yield what the new series no longer has: patches, files that patches touch, requirements."""
    gone = {outcome.id for outcome in ported if outcome.state == "upstream"}
    outcomes = {outcome.id: outcome for outcome in ported}  # none if the new series was there already
    for patch, outcome in ((patch, outcomes[patch.id]) for patch in series.patches if patch.id in outcomes):
        if patch.id in gone and patch.id in diffs:
            yield ReportLine(patch.id, outcome.detail)
        if outcome.diff is None:
            continue
        renamed = dict(outcome.renamed)
        for path in diffs[patch.id].paths:
            if path not in outcome.diff.paths and renamed.get(path) not in outcome.diff.paths:
                yield ReportLine(f"{patch.id}: {path}", "the patch changes nothing in it any more")
        yield from (
            ReportLine(f"{patch.id}: requires {name}", f"{name} is upstream") for name in patch.requires if name in gone
        )


def _decisions(ported: Sequence[Ported], needs: Sequence[Need]) -> Iterator[ReportLine]:
    """Yield what a person must merge, write or read."""
    for outcome in ported:
        yield from (ReportLine(f"{outcome.id}: {file.path}", file.reason) for file in outcome.unmerged)
        if outcome.state == "missing":
            yield ReportLine(outcome.id, outcome.detail)
        for name in outcome.otherwise:
            yield ReportLine(outcome.id, f"read what it takes of {name}, which is upstream in another form")
    yield from (ReportLine(need.where, f"{need.now}: {need.then}") for need in needs if need.state == "decide")
