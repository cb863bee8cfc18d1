"""Combinations of patches: which sets of a series the search may propose.

A set is closed when it holds everything that its patches require. Only the ends are checked for conflicts: every closed
set between them is free of conflicts because the bigger end is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nvllm.bisect.verdict import PatchSet
from nvllm.core import canonical
from nvllm.core.refusal import refuse
from nvllm.patches import patchset
from nvllm.patches.series import Series


@dataclass(frozen=True, slots=True)
class Combinations:
    """The carried patches of a series in their ORDER, with what each requires and what it conflicts with."""

    order: tuple[str, ...]
    requires: Mapping[str, PatchSet]
    conflicts: Mapping[str, PatchSet]

    def closed(self, chosen: Iterable[str]) -> PatchSet:
        """Return CHOSEN with everything that it requires, directly or indirectly."""
        found: set[str] = set()
        waiting = list(chosen)
        while waiting:
            patch = waiting.pop()
            if patch not in found:
                found.add(patch)
                waiting.extend(self.requires.get(patch, frozenset()))
        return frozenset(found)

    def without(self, chosen: PatchSet, removed: Iterable[str]) -> PatchSet:
        """Return CHOSEN without REMOVED and without everything in it that requires one of them."""
        gone = set(removed)
        while more := {one for one in chosen - gone if self.requires.get(one, frozenset()) & gone}:
            gone |= more
        return chosen - gone

    def valid(self, chosen: PatchSet) -> bool:
        """Return whether CHOSEN may be built: its patches are known, it is closed, and no two of them conflict."""
        return (
            chosen <= set(self.order)
            and self.closed(chosen) == chosen
            and not any(self.conflicts.get(one, frozenset()) & chosen for one in chosen)
        )

    def ordered(self, chosen: Iterable[str]) -> tuple[str, ...]:
        """Return CHOSEN in the order in which it is applied."""
        wanted = frozenset(chosen)
        return tuple(one for one in self.order if one in wanted)


def of_series(series: Series) -> Combinations:
    """Return the combinations of the patches that SERIES carries; those that are upstream are left out."""
    carried = [patch for patch in series.patches if patch.status == "carried"]
    names = {patch.id for patch in carried}
    conflicts: dict[str, set[str]] = {name: set() for name in names}
    for patch in carried:
        for other in names.intersection(patch.conflicts):
            conflicts[patch.id].add(other)
            conflicts[other].add(patch.id)
    return Combinations(
        tuple(patch.id for patch in carried),
        {patch.id: frozenset(names.intersection(patch.requires)) for patch in carried},
        {name: frozenset(others) for name, others in conflicts.items()},
    )


def named(series: Series, text: str, enabled: Iterable[str], *, where: str) -> PatchSet:
    """Return the set that TEXT names: ``all``, ``none``, ``spec`` (ENABLED), or ids separated by commas.

    WHERE is the option that messages name. Raises Refused NV106 and NV107 as `patchset.choose` does.
    """
    if text == "none":
        return frozenset()
    if text == "all":
        ids = [patch.id for patch in series.patches if patch.status == "carried"]
    elif text == "spec":
        ids = list(enabled)
    else:
        ids = [one.strip() for one in text.split(",") if one.strip()]
    return frozenset(patch.id for patch in patchset.choose(series, ids, where=where))


def check_ends(low: PatchSet, high: PatchSet, *, where: str) -> None:
    """Raise Refused NV108 unless HIGH contains LOW and more: the search goes from the smaller end to the bigger."""
    if low < high:
        return
    if low == high:
        found = "the same set twice"
    elif high < low:
        found = "the end without the effect contains the end with it"
    else:
        found = "two sets, neither of which contains the other"
    cure = "with --find break, --good must be a part of --bad; with --find fix, --bad a part of --good"
    raise refuse("NV108", where, "two ends, one of which contains the other", found, cure)


def set_hash(chosen: Iterable[str]) -> str:
    """Return a short, stable name of CHOSEN for people, 7 hex digits."""
    return canonical.digest("nvllm.patchset/1", sorted(chosen))[:7]
