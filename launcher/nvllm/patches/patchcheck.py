"""`nvllm patch check`: whether each patch of a series applies to a source, pinned or candidate.

"Already upstream" is proved: the reverse patch applies, or the source has the evidence that the series names. If the
series says "upstream" and the evidence is missing, that is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from nvllm.patches import patching
from nvllm.patches.patching import Conflict
from nvllm.patches.series import Patch, Series, SourceEvidence, Status
from nvllm.patches.source import Overlay, SourceTree
from nvllm.patches.unified import Diff

PatchState = Literal["applies", "already-upstream", "conflicts", "rejected", "missing"]


@dataclass(frozen=True, slots=True)
class PatchOutcome:
    """The result for one patch.

    CONFLICTS are the hunks that do not apply; TESTS those below ``tests/``, which are not in any image. ERROR: the
    enabled patches do not fit the source. OTHERWISE: the source has a carried patch in another form, as its evidence
    shows.
    """

    id: str
    status: Status
    outcome: PatchState
    detail: str
    conflicts: tuple[Conflict, ...] = ()
    tests: tuple[Conflict, ...] = ()
    enabled: bool = False
    error: bool = False
    otherwise: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The results for a whole series on the source of VERSION."""

    base: str
    pinned: str
    version: str
    outcomes: tuple[PatchOutcome, ...]

    @property
    def ok(self) -> bool:
        return not any(outcome.error for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The status of one patch in two series, None if a series lacks it. SAME: both have the same file."""

    id: str
    here: Status | None
    there: Status | None
    same: bool


def beside(series: Series, other: Series) -> tuple[Counterpart, ...]:
    """Return each patch of SERIES beside that of the same id in OTHER, then those that only OTHER has."""
    names = dict.fromkeys(patch.id for patch in (*series.patches, *other.patches))
    pairs = ((name, series.patch(name), other.patch(name)) for name in names)
    return tuple(
        Counterpart(
            name,
            here.status if here else None,
            there.status if there else None,
            bool(here and there and here.sha256 is not None and here.sha256 == there.sha256),
        )
        for name, here, there in pairs
    )


def paths_read(series: Series) -> frozenset[str]:
    """Return every path that `report` reads, to be extracted from a source archive."""
    return frozenset(
        path for patch in series.patches for path in (*patch.touches, *(evidence.path for evidence in patch.evidence))
    )


def report(
    series: Series, diffs: Mapping[str, Diff], enabled: Collection[str], tree: SourceTree, version: str
) -> Report:
    """Return the result of each patch of SERIES on TREE, the source of VERSION.

    DIFFS are those of the carried patches (`seriesfile.diffs`), ENABLED the ids of a patch set. An enabled patch is
    applied on top of the enabled ones before it, as in a build; any other on top of its required patches.
    """
    outcomes: list[PatchOutcome] = []
    built: dict[str, bytes | None] = {}
    for patch in series.patches:
        if patch.status != "carried":
            outcomes.append(_not_carried(patch, tree))
            continue
        on = patch.id in enabled
        below = built if on else _required(series, diffs, patch, tree)
        outcome, changes = _carried(patch, diffs[patch.id], tree, below)
        if on:
            built |= changes
        upstream_in_pin = outcome.outcome == "already-upstream" and version == series.version
        error = on and (outcome.outcome == "conflicts" or upstream_in_pin)
        outcomes.append(replace(outcome, enabled=on, error=error))
    return Report(series.base, series.version, version, tuple(outcomes))


def _not_carried(patch: Patch, tree: SourceTree) -> PatchOutcome:
    if patch.status == "rejected":
        return PatchOutcome(patch.id, patch.status, "rejected", patch.reason or "")
    missing = lacking(patch.evidence, tree)
    since = f"since {patch.upstream.since}" if patch.upstream.since else "by the series"
    if missing:
        detail = f"claimed upstream {since}, but {'; '.join(missing)}"
        return PatchOutcome(patch.id, patch.status, "missing", detail, error=True)
    return PatchOutcome(patch.id, patch.status, "already-upstream", f"already upstream {since}")


def _carried(
    patch: Patch, diff: Diff, tree: SourceTree, below: Mapping[str, bytes | None]
) -> tuple[PatchOutcome, dict[str, bytes | None]]:
    """Return the result of a carried PATCH on TREE with the changes BELOW, and its own changes if it applies."""
    code = replace(diff, files=tuple(file for file in diff.files if not _is_test(file.path)))
    tests = replace(diff, files=tuple(file for file in diff.files if _is_test(file.path)))
    here = Overlay(tree, below)

    def outcome(answer: PatchState, detail: str) -> PatchOutcome:
        return PatchOutcome(patch.id, patch.status, answer, detail)

    since = f" since {patch.upstream.since}" if patch.upstream.since else ""
    if patching.reverses(here, code if code.files else tests):
        return outcome("already-upstream", f"already upstream{since}: the source holds what it does"), {}
    if patch.evidence and not lacking(patch.evidence, tree):
        detail = f"already upstream{since}, in another form: its evidence holds"
        return replace(outcome("already-upstream", detail), otherwise=True), {}
    tried, tried_tests = patching.attempt(here, code), patching.attempt(here, tests)
    if tried.conflicts:
        files = sorted({conflict.file for conflict in tried.conflicts})
        result = outcome("conflicts", f"in {', '.join(files)}")
        return replace(result, conflicts=tried.conflicts, tests=tried_tests.conflicts), {}
    changes = dict(tried.changes)
    if tried_tests.conflicts:
        detail = f"applies, but not {len(tried_tests.conflicts)} of its hunks below tests/"
        return replace(outcome("applies", detail), tests=tried_tests.conflicts), changes
    return outcome("applies", "applies"), changes | tried_tests.changes


def _required(series: Series, diffs: Mapping[str, Diff], patch: Patch, tree: SourceTree) -> dict[str, bytes | None]:
    """Return the changes to TREE by the patches that PATCH requires, without those that do not apply."""
    changes: dict[str, bytes | None] = {}
    for required in requirements(series, patch):
        changes |= _carried(required, diffs[required.id], tree, changes)[1]
    return changes


def requirements(series: Series, patch: Patch) -> tuple[Patch, ...]:
    """Return the carried patches that PATCH requires, and those that they require, in the series' order."""
    needed: set[str] = set()
    waiting = list(patch.requires)
    while waiting:
        required = series.patch(waiting.pop())
        if required is not None and required.id not in needed and required.status == "carried":
            needed.add(required.id)
            waiting += required.requires
    return tuple(other for other in series.patches if other.id in needed)


def _is_test(path: str) -> bool:
    return path.startswith("tests/")


def lacking(evidence: Collection[SourceEvidence], tree: SourceTree) -> tuple[str, ...]:
    """Return a description of each part of EVIDENCE that TREE lacks."""
    problems: list[str] = []
    for item in evidence:
        content = tree.read(item.path)
        if content is None:
            problems.append(f"{item.path} is not in this source")
            continue
        problems += [f"{item.path} does not hold {text!r}" for text in item.contains if text.encode() not in content]
        problems += [f"{item.path} still holds {text!r}" for text in item.lacks if text.encode() in content]
    return tuple(problems)
