"""How much the artifacts of a search differ: the correlation of the trials of one, and a test of homogeneity."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from nvllm.bisect.posterior import Count, Rates


@dataclass(frozen=True, slots=True)
class BuildSpread:
    """How much the artifacts of a search differ, if they have one of two mean rates: with the culprit and without.

    ARTIFACTS of so many SETS were tried TRIALS times. The intraclass correlation of two trials of one artifact is
    between LOW and HIGH with a probability of 95 %. CHANCE is the probability of one so high that a certificate is
    worth little. P is the probability of counts as uneven as these, or more, if artifacts with and without the culprit
    have one rate each. MIXED: some set was both good and bad. DIFFERS: the artifacts do differ. BY_FACT: the
    correlation is 0 because artifacts cannot differ, so that counts which are too uneven have another reason.
    """

    artifacts: int
    sets: int
    trials: int
    low: float
    high: float
    chance: float
    p: float
    mixed: bool
    differs: bool
    by_fact: bool = False

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
"Sequential Monte Carlo p-values", 1991)."""


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
    p = uneven(*(tuple(sorted(group, key=_order)) for group in groups))
    return BuildSpread(
        sum(len(count.artifacts) for count in seen),
        len(seen),
        sum(count.hits + count.misses for count in seen),
        kept[0],
        kept[-1],
        chance,
        p,
        any(count.hits and count.misses for count in seen),
        p < _UNEVEN or chance > _LIKELY,
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
    most = sum(map(sum, sizes))
    logs = [0.0, *(number * math.log(number) for number in range(1, 1 + most))]
    hits = [[count.hits for count in group] for group in groups]
    observed = sum(itertools.starmap(functools.partial(_explained, logs), zip(hits, sizes, strict=True)))
    as_uneven = 0
    for drawn in range(_SHUFFLES):
        shuffled = [_shuffled(sum(hit), size, rng) for hit, size in zip(hits, sizes, strict=True)]
        explained = sum(itertools.starmap(functools.partial(_explained, logs), zip(shuffled, sizes, strict=True)))
        as_uneven += explained >= observed - 1e-9
        if as_uneven == _ENOUGH:
            return as_uneven / (1 + drawn)
    return (1 + as_uneven) / (1 + _SHUFFLES)


def _shuffled(hits: int, sizes: Sequence[int], rng: random.Random) -> list[int]:
    """Return the hits of artifacts with SIZES trials, if all HITS are anywhere among these trials."""
    hit_at = sorted(rng.sample(range(sum(sizes)), hits))
    passed = [bisect.bisect_left(hit_at, end) for end in itertools.accumulate(sizes)]
    return [after - before for before, after in itertools.pairwise([0, *passed])]


def _explained(logs: Sequence[float], hits: Sequence[int], sizes: Sequence[int]) -> float:
    """Return half of G, up to a constant for SIZES: how much better the rate of each artifact explains its HITS than
    the rate of all. LOGS has n log(n) for each n."""
    return sum([logs[hit] + logs[size - hit] for hit, size in zip(hits, sizes, strict=True)])
