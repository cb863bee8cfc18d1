"""ddmin over patches that require each other: from a set that shows an effect to one from which nothing can go.

Only closed sets are tried. Taking a part out takes its dependants along; a part alone brings what it requires.
Without any requirement this is Zeller's and Hildebrandt's ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from nvllm.bisect.combinations import Combinations
from nvllm.bisect.verdict import PatchSet


def minimise(
    combinations: Combinations, start: PatchSet, base: PatchSet, shows: Callable[[PatchSet], bool]
) -> PatchSet:
    """Return a part of START that shows the effect and of which no closed set one smaller does.

    BASE stays in every set. START shows the effect. SHOWS says it of other sets, false where that cannot be
    told: the result still shows the effect then, but something may be left in it that is not needed.
    """
    current, granularity = start, 2
    while True:
        items = combinations.ordered(current - base)
        if not items:
            return current
        granularity = min(granularity, len(items))
        parts = list(_parts(items, granularity))
        alone = [combinations.closed(base | set(part)) for part in parts]
        smaller = _first(alone, current, shows)
        if smaller is not None:
            current, granularity = smaller, 2
            continue
        smaller = _first([combinations.without(current, part) for part in parts], current, shows)
        if smaller is not None:
            current, granularity = smaller, max(granularity - 1, 2)
        elif granularity >= len(items):
            return current
        else:
            granularity = min(2 * granularity, len(items))


def _first(candidates: Iterable[PatchSet], current: PatchSet, shows: Callable[[PatchSet], bool]) -> PatchSet | None:
    """Return the first of CANDIDATES that is smaller than CURRENT and shows the effect."""
    return next((one for one in candidates if one < current and shows(one)), None)


def _parts(items: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    """Yield ITEMS in COUNT neighbouring parts of nearly one size."""
    for index in range(count):
        yield items[index * len(items) // count : (index + 1) * len(items) // count]
