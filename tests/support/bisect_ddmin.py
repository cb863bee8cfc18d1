"""ddmin as the search has it, for a test that answers at once."""

from __future__ import annotations

from collections.abc import Callable

from nvllm.bisect.combinations import Combinations, PatchSet, minimise
from nvllm.bisect.weighing import Asking, step


def ddmin(combinations: Combinations, start: PatchSet, base: PatchSet, shows: Callable[[PatchSet], bool]) -> PatchSet:
    """Return what `minimise` returns if SHOWS answers at once."""

    def answered(chosen: PatchSet) -> Asking[bool]:
        yield from ()
        return shows(chosen)

    smallest = step(minimise(combinations, start, base, answered))
    assert isinstance(smallest, frozenset)
    return smallest
