"""Combinations of patches: which sets of a series the search may propose.

A set is closed when it holds everything that its patches require. Only the ends are checked for conflicts: every closed
set between them is free of conflicts because the bigger end is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from nvllm.core import canonical
from nvllm.core.refusal import refuse
from nvllm.patches import patchset
from nvllm.patches.series import Series

PatchSet: TypeAlias = frozenset[str]
"""Ids of patches, without an order: the series gives them theirs."""

_NOTHING: PatchSet = frozenset()

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Combinations:
    """The carried patches of a series in their ORDER, with what each requires and what it conflicts with."""

    order: tuple[str, ...]
    requires: Mapping[str, PatchSet]
    conflicts: Mapping[str, PatchSet]

    def closed(self, chosen: Iterable[str]) -> PatchSet:
        """Return CHOSEN with everything that it requires, directly or indirectly."""
        members = set(chosen)
        new = members
        while new:
            new = set().union(*map(self.requires.get, new, itertools.repeat(_NOTHING))) - members
            members |= new
        return frozenset(members)

    def without(self, chosen: PatchSet, removed: Iterable[str]) -> PatchSet:
        """Return CHOSEN without REMOVED and without everything in it that requires one of them."""
        gone = set(removed)
        while more := {
            patch
            for patch, needed in self.requires.items()
            if not needed.isdisjoint(gone) and patch in chosen and patch not in gone
        }:
            gone |= more
        return chosen - gone

    def tops(self, chosen: PatchSet) -> tuple[str, ...]:
        """Return the patches of CHOSEN that no other of them requires: only these can be left out one at a time."""
        needed = frozenset().union(*(self.requires.get(patch, frozenset()) for patch in chosen))
        return self.ordered(chosen - needed)

    def valid(self, chosen: PatchSet) -> bool:
        """Return whether CHOSEN may be built: its patches are known, it is closed, and no two of them conflict."""
        return (
            chosen <= set(self.order)
            and self.closed(chosen) == chosen
            and not any(self.conflicts.get(patch, frozenset()) & chosen for patch in chosen)
        )

    def ordered(self, chosen: Iterable[str]) -> tuple[str, ...]:
        """Return CHOSEN in the order in which it is applied."""
        members = frozenset(chosen)
        return tuple(patch for patch in self.order if patch in members)


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

    WHERE is the option that messages name. Raises Refused NV108 for a text that names nothing, and NV106 and
    NV107 as `patchset.choose` does.
    """
    if not any(item.strip() for item in text.split(",")):
        raise refuse("NV108", where, "all, none, spec, or ids of patches", repr(text), f"{where} none, for no patch")
    if text == "none":
        return frozenset()
    if text == "all":
        ids = [patch.id for patch in series.patches if patch.status == "carried"]
    elif text == "spec":
        ids = list(enabled)
    else:
        ids = [item.strip() for item in text.split(",") if item.strip()]
    return frozenset(patch.id for patch in patchset.choose(series, ids, where=where))


def check_ends(low: PatchSet, high: PatchSet, *, where: str) -> None:
    """Raise Refused NV108 unless HIGH contains LOW and more: the search goes from the smaller end to the bigger."""
    if low < high:
        return
    if low == high:
        relation = "the same set twice"
    elif high < low:
        relation = "the end without the effect contains the end with it"
    else:
        relation = "two sets, neither of which contains the other"
    cure = "with --find break, --good must be a part of --bad; with --find fix, --bad a part of --good"
    raise refuse("NV108", where, "two ends, one of which contains the other", relation, cure)


def set_hash(chosen: Iterable[str]) -> str:
    """Return a short, stable name of CHOSEN for people, 7 hex digits."""
    return canonical.digest("nvllm.patchset/1", sorted(chosen))[:7]


def halves(
    combinations: Combinations, lower: PatchSet, upper: PatchSet, items: Sequence[str], first: int | None = None
) -> Iterator[PatchSet]:
    """Yield closed sets between LOWER and UPPER, which differ by ITEMS, the most useful first.

    First the prefix of the FIRST of ITEMS, or by default the one that halves them; the others are for the case that it
    cannot be tested: what remains without that prefix, and then the same for the cuts nearby.
    """
    size, seen = len(items), set[PatchSet]()
    middle = first if first is not None else split(0, size) if size > 1 else 0
    for cut in sorted(range(1, size), key=lambda index: (abs(index - middle), index)):
        for part in (items[:cut], items[cut:]):
            chosen = combinations.closed(lower | set(part))
            if lower < chosen < upper and chosen not in seen:
                seen.add(chosen)
                yield chosen


def split(low: int, high: int) -> int:
    """Return where to cut the candidates low+1..high for the shortest search.

    If two cuts are equally good on average and at worst, the later part is the smaller: a culprit that is found late
    leaves more patches to search for a second one.
    """
    size = high - low
    # A search tree has the least mean depth if its leaves are on its last two levels.
    power = 1 << (size - 1).bit_length()
    return low + min(power // 2, size - power // 4)


def minimise(
    combinations: Combinations, start: PatchSet, base: PatchSet, shows: Callable[[PatchSet], Generator[Q, None, bool]]
) -> Generator[Q, None, PatchSet]:
    """Return a minimal part of START that shows the effect: no patch can be dropped from it. This is ddmin.

    Only closed sets are tried: patches are dropped together with those that require them, and tried together with
    those that they require. Without requirements it is Zeller's and Hildebrandt's ddmin. BASE stays in every set.
    START shows the effect. SHOWS tests other sets, and what it yields is yielded. If it is false for a set that cannot
    be tested, the result still shows the effect but may contain a patch that is not needed.
    """
    current, granularity = start, 2
    while True:
        items = combinations.ordered(current - base)
        if not items:
            return current
        granularity = min(granularity, len(items))
        parts = list(_parts(items, granularity))
        alone = [combinations.closed(base | set(part)) for part in parts]
        smaller = yield from first_showing(alone, current, shows)
        if smaller is not None:
            current, granularity = smaller, 2
            continue
        smaller = yield from first_showing([combinations.without(current, part) for part in parts], current, shows)
        if smaller is not None:
            current, granularity = smaller, max(granularity - 1, 2)
        elif granularity >= len(items):
            return current
        else:
            granularity = min(2 * granularity, len(items))


def first_showing(
    candidates: Iterable[PatchSet], current: PatchSet, shows: Callable[[PatchSet], Generator[Q, None, bool]]
) -> Generator[Q, None, PatchSet | None]:
    """Return the first of CANDIDATES that is a proper part of CURRENT and shows the effect."""
    for chosen in candidates:
        if chosen < current and (yield from shows(chosen)):
            return chosen
    return None


def _parts(items: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    """Yield ITEMS in COUNT consecutive parts of nearly equal size."""
    for index in range(count):
        yield items[index * len(items) // count : (index + 1) * len(items) // count]
