"""How much the artifacts of a search differ: the correlation of the trials of one, and a test of homogeneity."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass

from nvllm.bisect.posterior import Count, Rates


@dataclass(frozen=True, slots=True)
class BuildSpread:
    """How much the artifacts of a search differ, if they have one of two mean rates: with the culprit and without.

    ARTIFACTS of so many SETS were tried TRIALS times. The intraclass correlation of two trials of one artifact is
    between LOW and HIGH with a probability of 95 %. CHANCE is the probability of one so high that a certificate is
    worth little. GROUPS are the trials of each artifact with the culprit and without it. MIXED: some set was both good
    and bad. BY_FACT: the correlation is 0 because artifacts cannot differ, so that counts which are too uneven have
    another reason.
    """

    artifacts: int
    sets: int
    trials: int
    low: float
    high: float
    chance: float
    groups: tuple[tuple[Count, ...], ...]
    mixed: bool
    by_fact: bool = False

    @property
    def p(self) -> float:
        """The probability of counts as uneven as these, or more, if the artifacts of each group have one rate."""
        return uneven(*self.groups)

    @property
    def differs(self) -> bool:
        """Whether the artifacts do differ."""
        return self.chance > _LIKELY or self.p < _UNEVEN

    @property
    def too_likely(self) -> bool:
        """Whether artifacts differ, or that is too likely for a certificate."""
        return self.differs or self.chance > DOUBT


DOUBT = 0.2
"""How probable artifacts that differ may be in a certificate."""

_UNEVEN = 0.01
"""The p-value of the test of homogeneity from which on artifacts count as different."""

_CLEARLY = 0.1
"""The correlation above which a certificate would be worth little."""

_LIKELY = 0.5
"""The probability of such a correlation from which on artifacts count as different."""

_SHUFFLES, _ENOUGH = 600, 20
"""Shuffles of a test of homogeneity, and those as uneven as the trials after which it ends early (Besag and Clifford,
"Sequential Monte Carlo p-values", 1991). It also does so if half of them are more even: then p is small enough."""


def differ(rates: Rates) -> float:
    """Return the probability that artifacts differ so much that a certificate would be worth little."""
    top = max(rates.logs)
    chances = [math.exp(log - top) for log in rates.logs]
    return sum(itertools.compress(chances, (alike > _CLEARLY for alike in rates.grid.alike))) / sum(chances)


def spread(rates: Rates, holding: Sequence[Count], lacking: Sequence[Count]) -> BuildSpread:
    """Return how much artifacts differ; the sets HOLDING the culprit and those LACKING it had these trials.

    RATES are those before any trial.
    """
    after = rates.after([*map(rates.if_holds, holding), *map(rates.if_other, lacking)])
    top, chance = max(after.logs), differ(after)
    chances: dict[float, float] = {}
    for alike, log in zip(after.grid.alike, after.logs, strict=True):
        chances[alike] = chances.get(alike, 0.0) + math.exp(log - top)
    whole, below, kept = sum(chances.values()), 0.0, []
    for alike, part in sorted(chances.items()):
        if below < 0.975 * whole and below + part > 0.025 * whole:
            kept.append(alike)
        below += part
    seen = [*holding, *lacking]
    groups = ([artifact for count in sets for artifact in count.artifacts] for sets in (holding, lacking))
    return BuildSpread(
        sum(len(count.artifacts) for count in seen),
        len(seen),
        sum(count.hits + count.misses for count in seen),
        kept[0],
        kept[-1],
        chance,
        tuple(tuple(sorted(group, key=_order)) for group in groups),
        any(count.hits and count.misses for count in seen),
        not any(rates.grid.alike),
    )


def _order(count: Count) -> tuple[int, int]:
    return count.hits, count.misses


@functools.lru_cache(maxsize=1024)
def uneven(*groups: tuple[Count, ...]) -> float:
    """Return the p-value of the hypothesis that all artifacts of each of GROUPS have the same rate.

    It is that of the likelihood ratio statistic G, summed over the groups, against its distribution if the hits of a
    group are shuffled over its trials, which needs no large numbers. The shuffles are drawn by a fixed seed.
    """
    rng = random.Random(0)  # noqa: S311 - a statistic, which has to be the same on every machine
    sizes = [[count.hits + count.misses for count in group] for group in groups]
    hits = [[count.hits for count in group] for group in groups]
    logs = [0.0, *(number * math.log(number) for number in range(1, 1 + max(itertools.chain(*sizes), default=0)))]
    tables = [[_explained(logs, size) for size in group] for group in sizes]
    observed = sum(sum(map(operator.getitem, *group)) for group in zip(tables, hits, strict=True))
    shuffles = [(sum(hit), sum(size), table) for hit, size, table in zip(hits, sizes, tables, strict=True)]
    as_uneven = 0
    for drawn in range(_SHUFFLES):
        as_uneven += sum([_shuffled(*group, rng) for group in shuffles]) >= observed - 1e-9
        if as_uneven == _ENOUGH:
            return as_uneven / (1 + drawn)
        if not as_uneven and 2 * drawn == _SHUFFLES:
            return 1 / (2 + drawn)
    return (1 + as_uneven) / (1 + _SHUFFLES)


def _shuffled(hits: int, trials: int, tables: Sequence[Sequence[float]], rng: random.Random) -> float:
    """Return what `_explained` has for artifacts, one of TABLES each, if the HITS are anywhere among all TRIALS."""
    explained = 0.0
    for table in tables:
        if not 0 < hits < trials:
            break
        size = len(table) - 1
        own = bisect.bisect_right(_first_hits(hits, size, trials), rng.random())
        explained += table[own]
        hits, trials = hits - own, trials - size
    return explained


@functools.lru_cache(maxsize=65536)
def _first_hits(hits: int, size: int, trials: int) -> tuple[float, ...]:
    """Return the probability that at most 0, 1, ... of HITS are among the first SIZE of TRIALS.

    Each is a quotient of integers, so it is the same on every machine.
    """
    ways = [math.comb(size, own) * math.comb(trials - size, hits - own) for own in range(min(size, hits) + 1)]
    return tuple(below / math.comb(trials, hits) for below in itertools.accumulate(ways))


def _explained(logs: Sequence[float], size: int) -> list[float]:
    """Return the part of an artifact with SIZE trials in half of G, up to a constant, for each number of its hits: how
    much better its own rate explains them than the rate of all. LOGS has n log(n) for each n."""
    return [logs[hits] + logs[size - hits] - logs[size] for hits in range(size + 1)]
