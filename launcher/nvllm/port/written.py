"""The series of the new release, as files: patches with new hashes, and records of what is upstream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvllm.core import yamledit
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.patches import edit, imported, seriesfile, unified
from nvllm.patches.series import Patch, Series, SourceEvidence
from nvllm.patches.source import SourceTree
from nvllm.patches.unified import Diff
from nvllm.port.merge import Ported

_HEADING = (
    "The patches for vLLM {base}, in the order in which they are applied. `nvllm port` moved them from {old};",
    "`nvllm patch check` compares them with the pinned source and with any other version.",
)
_LINES = 3
_LENGTH = 16
"""How many lines of an upstream change a record of it names at most, and how many characters such a line has at least:
a shorter one is in many files."""

Evidence: TypeAlias = Mapping[str, Sequence[SourceEvidence]]
"""By the id of a patch that is upstream: what the new source holds of it."""


@dataclass(frozen=True, slots=True)
class Release:
    """The release that a series is moved to: the name of its series' directory, its version and its commit."""

    base: str
    version: str
    commit: str


def files(text: str, series: Series, ported: Sequence[Ported], holding: Evidence, release: Release) -> dict[str, bytes]:
    """Return the files of the series for RELEASE, by name, from TEXT, the file of SERIES, and from PORTED.

    HOLDING is `evidence` of them. A patch that is upstream stays as a record with it. Raises Refused NV106 for one
    whose change leaves none.
    """
    outcomes = {outcome.id: outcome for outcome in ported}
    kept = [patch for patch in series.patches if patch.status != "carried" or outcomes[patch.id].diff is not None]
    heading = [line.format(base=release.base, old=series.base) for line in _HEADING]
    names = {"base": release.base, "version": release.version, "commit": release.commit}
    text = imported.series_text(text, series, kept={patch.id for patch in kept}, heading=heading, **names)
    written: dict[str, bytes] = {}
    for index, patch in enumerate(kept):
        diff = outcomes[patch.id].diff
        if patch.status != "carried" or diff is None:
            continue
        data = unified.render(diff)
        written[str(patch.file)] = data
        text = yamledit.set_scalar(text, ("patches", index, "sha256"), hashlib.sha256(data).hexdigest())
        if diff.paths != patch.touches:
            text = yamledit.set_list(text, ("patches", index, "touches"), diff.paths)
        nodes = moved_nodes(patch.proved_by, series.version, release.version)
        if nodes != list(patch.proved_by):
            text = yamledit.set_list(text, ("patches", index, "proved-by"), nodes)
        left = [other for other in patch.requires if outcomes[other].diff is not None]
        if len(left) < len(patch.requires):
            key = ("patches", index, "requires")
            text = yamledit.set_list(text, key, left) if left else yamledit.without_key(text, key)
    for patch in series.patches:
        if patch not in kept:
            entry = _upstream(patch, outcomes[patch.id], holding[patch.id], release)
            text = edit.extended(text, entry, f"patches/{release.base}/{seriesfile.NAME}")
    return {seriesfile.NAME: text.encode(), **written}


def moved_nodes(nodes: Sequence[str], old: str, new: str) -> list[str]:
    """Return the tests NODES with the release NEW as their parameter where that is OLD: ``test_it[0.28.0]``.

    Where the file has no such parameter yet, `nvllm patch prove` refuses the test. The old one would test the old
    source, with the patches of the old series.
    """
    return [f"{node.removesuffix(f'[{old}]')}[{new}]" if node.endswith(f"[{old}]") else node for node in nodes]


def _upstream(patch: Patch, outcome: Ported, holding: Sequence[SourceEvidence], release: Release) -> dict[str, Json]:
    """Return the entry that records that PATCH is upstream in RELEASE, whose source has what HOLDING says."""
    renamed = dict(outcome.renamed)
    paths = [renamed.get(path, path) for path in patch.touches]
    reference = {"reference": patch.upstream.reference} if patch.upstream.reference is not None else {}
    if not holding:
        cure = f"write `evidence:` of {patch.id} into its entry in patches/{release.base}, and run it again"
        raise refuse("NV106", patch.id, "lines of the change in the new source", "none that only it has", cure)
    return {
        "id": patch.id,
        "status": "upstream",
        "summary": patch.summary,
        "upstream": {"state": "merged", **reference, "since": outcome.since or release.version},
        "touches": paths,
        "proved-by": list(patch.proved_by),
        "evidence": [
            {"path": item.path, "contains": list(item.contains), **({"lacks": list(item.lacks)} if item.lacks else {})}
            for item in holding
        ],
    }


def evidence(series: Series, diffs: Mapping[str, Diff], ported: Sequence[Ported], tree: SourceTree) -> Evidence:
    """Return what TREE, the new source, holds of each patch of SERIES that is upstream there, as PORTED says, by id.

    It is what the series names, or else lines that the patch, one of DIFFS, adds and TREE has, for each of its files.
    """
    upstream = {outcome.id: outcome for outcome in ported if outcome.state == "upstream"}
    return {
        patch.id: patch.evidence or tuple(_evidence(diffs[patch.id], dict(upstream[patch.id].renamed), tree))
        for patch in series.patches
        if patch.id in upstream
    }


def _evidence(diff: Diff, renamed: Mapping[str, str], tree: SourceTree) -> Iterator[SourceEvidence]:
    for file in diff.files:
        path = renamed.get(file.path, file.path)
        content = tree.read(path) or b""
        added = [text.strip() for hunk in file.hunks for tag, text in hunk.lines if tag == "+"]
        lines = [line.decode() for line in added if len(line) >= _LENGTH and line in content]
        if lines:
            yield SourceEvidence(path, tuple(dict.fromkeys(lines))[:_LINES])
