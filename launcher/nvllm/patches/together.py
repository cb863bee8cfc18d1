"""Whether the patches of a set apply together, one after the other, and which two do not."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from nvllm.core.refusal import Refusal
from nvllm.patches import patchcheck, patching
from nvllm.patches.series import Patch, Series
from nvllm.patches.source import Overlay, SourceTree
from nvllm.patches.unified import Diff


def conflicts(
    series: Series, chosen: Sequence[Patch], diffs: Mapping[str, Diff], tree: SourceTree, where: str
) -> Iterator[Refusal]:
    """Yield NV609 for each patch of CHOSEN, a set of SERIES, that does not apply to TREE after those before it.

    WHERE is what messages call the set. A patch that does not apply alone either, on top of what it requires, is NV301
    with each hunk; the ones after it are tried without it.
    """
    changed: dict[str, bytes | None] = {}
    applied: list[Patch] = []
    for patch in chosen:
        tried = patching.attempt(Overlay(tree, changed), diffs[patch.id])
        if not tried.conflicts:
            changed |= tried.changes
            applied.append(patch)
            continue
        needed = [other for other in patchcheck.requirements(series, patch) if other in applied]
        alone = patching.attempt(patching.tried(tree, [diffs[other.id] for other in needed]), diffs[patch.id])
        if alone.conflicts:
            yield from (patching.refusal(diffs[patch.id].name, conflict) for conflict in alone.conflicts)
            continue
        near = [other for other in applied if other not in needed and {*other.touches} & {*patch.touches}]
        below = {other.id: [diffs[member.id] for member in _with(series, applied, needed, other)] for other in near}
        others = [
            name
            for name, under in below.items()
            if patching.attempt(patching.tried(tree, under), diffs[patch.id]).conflicts
        ]
        names = " and ".join(others) or "those before it, together"
        lines = ", ".join(f"{conflict.file} {conflict.hunk}".strip() for conflict in tried.conflicts)
        again = shlex.join(["nvllm", "patch", "replace", patch.id, "FILE"])
        cure = f"take one of them out of the set, or make the change on top of the other: {again}"
        yield Refusal("NV609", where, f"{patch.id} applies with {names}", f"not at {lines}", cure)


def _with(series: Series, applied: Sequence[Patch], needed: Sequence[Patch], other: Patch) -> list[Patch]:
    """Return NEEDED and OTHER with what it requires, in the order of APPLIED."""
    kept = {*(patch.id for patch in (*needed, other, *patchcheck.requirements(series, other)))}
    return [patch for patch in applied if patch.id in kept]
