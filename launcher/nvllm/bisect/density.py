"""How many patches a steady set search leaves out next, by how many are likely needed.

A set without some of the patches that are left shows the effect if and only if none of them is needed, if the failure
is monotone. So the search is a group test for needed patches: a group that is clean is left out for good, one that is
not is split until one patch of it remains, which is needed (Hwang, "A method for detecting all defective members in a
population by group testing", 1972).

How many patches are needed is not known. Before the first trial k of n are needed with a probability in proportion to
q^k, where q is 0.7, or 0.3 for up to 12 patches: few of few patches are needed. All sets of k patches are equally
likely. When j are known to be needed, n - j - f are left out and f are left, then r of the f are needed with a
probability in proportion to

    q^(j + r) C(f, r) / C(n, j + r),

because C(f, r) of the C(n, j + r) sets agree with that. A group of s of the f is clean with probability
C(f - r, s) / C(f, s) for each r. This is all that is known, but for the last group that is not clean.

Up to `_EXACT` patches that are left, the size of the next group is the one with the fewest expected builds. A build
that the certificate needs anyway costs nothing: a set that is the answer, or the answer without one patch. With more
patches left it is the group that is clean with a probability nearest to one half.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass

_EXACT = 16
"""The patches that are left up to which the expected builds are computed: their cost grows with the fourth power."""

_SHORT = 12
"""The patches of a short series."""

_LONG_POWERS, _SHORT_POWERS = (
    tuple(itertools.accumulate([more] * 1024, operator.mul, initial=1.0)) for more in (0.7, 0.3)
)
"""Powers of the probability, before the first trial, that one more patch is needed. They are made by products alone, so
that they are the same on every machine. With those of a short series it takes no more builds to find one or two of 12
than by halving."""

_NEGLIGIBLE = 1e-13

_TIE = 1e-9
"""The difference below which two values count as equal, so that all machines choose the same."""


@dataclass(frozen=True, slots=True)
class Groups:
    """What may be true of the patches that are left, for a group of each size from 0, of the last of them.

    CLEAN: the probability that the group has no needed patch. LINE: the probability that the set without it is one that
    the certificate needs: then all others are needed, and at most one of the group is.
    """

    clean: tuple[float, ...]
    line: tuple[float, ...]


@functools.lru_cache(maxsize=65536)
def leave_out(total: int, needed: int, left: int, group: int) -> int:
    """Return how many of the last patches that are left are tried next without.

    Of TOTAL patches NEEDED are known to be needed and LEFT may be; the last GROUP of these are known not to be clean,
    and the answer is smaller; 0: no group is.
    """
    if left <= _EXACT:
        return _best(total, needed, left, group)[1]
    clean = groups(total, needed, left).clean
    unclean = 1 - clean[group] if group else 1.0
    known = clean[group] if group else 0.0
    sizes = range(1, group or left + 1)
    return min(sizes, key=lambda size: (round(abs((clean[size] - known) / unclean - 0.5), 9), -size))


@functools.lru_cache(maxsize=4096)
def groups(total: int, needed: int, left: int) -> Groups:
    """Return what may be true of the groups where of TOTAL patches NEEDED are known to be needed and LEFT are left."""
    least = 0 if needed else 1  # the bigger end shows the effect, and the smaller one does not
    powers = _SHORT_POWERS if total <= _SHORT else _LONG_POWERS
    raw = [
        powers[needed + more] * (math.comb(left, more) / math.comb(total, needed + more)) if more >= least else 0.0
        for more in range(left + 1)
    ]
    chances = [weight / sum(raw) for weight in raw]
    clean, line = [0.0] * (left + 1), list[float]()
    for more, chance in enumerate(chances):
        if chance > _NEGLIGIBLE:
            for size in range(left - more + 1):
                clean[size] += chance
                chance *= (left - more - size) / (left - size) if size < left else 0.0
    for size in range(left + 1):
        others = left - size
        whole = chances[others] / math.comb(left, others)
        one_of_it = chances[others + 1] * size / math.comb(left, others + 1) if size else 0.0
        line.append(whole + one_of_it)
    return Groups(tuple(clean), tuple(line))


@functools.lru_cache(maxsize=65536)
def _best(total: int, needed: int, left: int, group: int) -> tuple[float, int]:
    """Return the expected builds until nothing is left, and the size of the next group; see `leave_out`."""
    if left == 0:
        return 0.0, 0
    if group == 1:
        return _best(total, needed + 1, left - 1, 0)[0], 0
    known = groups(total, needed, left)
    before = known.clean[group] if group else 0.0
    costs: list[tuple[float, int]] = []
    for size in range(1, group or left + 1):
        clean = (known.clean[size] - before) / (1 - before)
        build = 1 - known.line[size] / (1 - before)
        if_clean = _best(total, needed, left - size, group - size if group else 0)[0]
        costs.append((build + clean * if_clean + (1 - clean) * _best(total, needed, left, size)[0], size))
    least = min(cost for cost, _ in costs)
    return next((cost, size) for cost, size in costs if cost <= least + _TIE)
