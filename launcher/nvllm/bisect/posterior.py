"""Beliefs about flaky failures: rates with intervals, the position of the culprit, and the most useful next trial.

A *hit* is a trial that shows the effect, a *miss* one that does not. Sets that contain the culprit hit at one rate, all
others at another. Neither rate is known: they are a pair from a grid, narrowed by the trials of both ends and of all
other sets, and every probability is a sum over the grid. A set of which nothing is known is one or the other with equal
chances. To settle on the likelier one first would learn too small a rate of false alarms, because a set with a few of
them would then count as one with the culprit.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvllm.core.statistics import cumulative

AMORTISED = 8.0
"""Trials of one image in a typical flaky search: the price of a build is divided by it."""


@dataclass(frozen=True, slots=True)
class Count:
    """Hits and misses."""

    hits: int = 0
    misses: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.hits + other.hits, self.misses + other.misses)


@dataclass(frozen=True, slots=True)
class Beta:
    """A rate whose distribution is Beta(A, B)."""

    a: float = 1.0
    b: float = 1.0

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def plus(self, seen: Count) -> Beta:
        """Return the belief after SEEN."""
        return Beta(self.a + seen.hits, self.b + seen.misses)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the central interval that holds the rate with probability LEVEL."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def quantile(self, probability: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if cumulative(self.a, self.b, middle) < probability else (low, middle)
        return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Rates:
    """Pairs of rates: of hits of a set that contains the culprit (HOLDS), and of any OTHER set.

    LOGS are the logarithms of their weights, up to a constant.
    """

    holds: tuple[float, ...]
    other: tuple[float, ...]
    logs: tuple[float, ...]

    def after(self, seen: Iterable[Sequence[float]]) -> Rates:
        """Return the rates after evidence, of which each of SEEN has the logarithm for each pair."""
        return Rates(self.holds, self.other, tuple(map(sum, zip(self.logs, *seen, strict=True))))

    def but(self, seen: Sequence[float]) -> Rates:
        """Return the rates without the evidence SEEN, which is in them."""
        return Rates(self.holds, self.other, tuple(map(operator.sub, self.logs, seen)))


def known(holds: float, other: float) -> Rates:
    """Return the rates HOLDS and OTHER, known exactly: for simulations."""
    return Rates((holds,), (other,), (0.0,))


_SHOWS = (
    0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55,
    0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94, 0.97, 0.99, 0.998,
)  # fmt: skip
"""Failure rates of a set that is bad; each is as likely before the first trial."""

_STRAY = (0.0005, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Failure rates of a set that is good: of false alarms. The declared failure seldom shows where its cause is absent."""


def _stray_weight(rate: float) -> float:
    return 4.0 if rate == _STRAY[0] else 1 / (1 + 10 * rate)


_PAIRS = tuple((bad, good, math.log(_stray_weight(good))) for bad in _SHOWS for good in _STRAY if bad > good)


def unknown(*, fix: bool = False) -> Rates:
    """Return the rates before any trial. FIX: a hit is a pass."""
    holds, other, logs = zip(*_PAIRS, strict=True)
    if fix:
        holds, other = (tuple(1 - one for one in rates) for rates in (other, holds))
    return Rates(holds, other, logs)


@functools.lru_cache(maxsize=16384)
def likelihood(rates: tuple[float, ...], seen: Count) -> tuple[float, ...]:
    """Return the logarithm of the probability of SEEN, in one fixed order, at each of RATES."""
    at = {rate: seen.hits * math.log(rate) + seen.misses * math.log1p(-rate) for rate in set(rates)}
    return tuple(at[rate] for rate in rates)


@functools.lru_cache(maxsize=16384)
def either(holds: tuple[float, ...], other: tuple[float, ...], seen: Count) -> tuple[float, ...]:
    """Return the logarithm of the probability of SEEN, of a set that may contain the culprit or not."""
    return tuple(
        max(one, two) + math.log1p(math.exp(-abs(one - two))) - _LOG_2
        for one, two in zip(likelihood(holds, seen), likelihood(other, seen), strict=True)
    )


_LOG_2 = math.log(2)


def _total(logs: Iterable[float], top: float) -> float:
    return sum(math.exp(one - top) for one in logs)


def shows(rates: Rates, seen: Count) -> float:
    """Return the probability that a set with the trials SEEN contains the culprit, from a prior of one half.

    SEEN is no part of RATES.
    """
    one = [log + more for log, more in zip(rates.logs, likelihood(rates.holds, seen), strict=True)]
    two = [log + more for log, more in zip(rates.logs, likelihood(rates.other, seen), strict=True)]
    top = max(*one, *two)
    holds = _total(one, top)
    return holds / (holds + _total(two, top))


@dataclass(frozen=True, slots=True)
class Belief:
    """Where in a sequence of patches the culprit is: WEIGHTS[i] is the probability of patch i.

    INSIDE and OUTSIDE are the chances of the next hit of a set with and without the culprit, if it is patch i.
    """

    weights: tuple[float, ...]
    inside: tuple[float, ...]
    outside: tuple[float, ...]


_NEGLIGIBLE = 25.0
"""How much less likely a pair of rates is than the likeliest one, as a logarithm, when it may be left out."""


def _likely_pairs(rates: Rates) -> Rates:
    least = max(rates.logs) - _NEGLIGIBLE
    kept = [one for one in zip(rates.holds, rates.other, rates.logs, strict=True) if one[2] >= least]
    return Rates(*zip(*kept, strict=True))


def belief(rates: Rates, prior: Sequence[float], seen: Mapping[int, Count]) -> Belief:
    """Return the belief after SEEN, from PRIOR. SEEN has the trials by the length of the prefix that was tried."""
    rates = _likely_pairs(rates)
    held, free = sum((count for length, count in seen.items() if length > 0), Count()), seen.get(0, Count())
    logs: list[list[float]] = []
    for index, before in enumerate(prior):
        start, one, two = math.log(before), likelihood(rates.holds, held), likelihood(rates.other, free)
        logs.append([start + log + a + b for log, a, b in zip(rates.logs, one, two, strict=True)])
        if (passed := seen.get(index + 1)) is not None:  # the next patch is the first that this prefix lacks
            held, free = Count(held.hits - passed.hits, held.misses - passed.misses), free + passed
    top = max(map(max, logs))
    totals, inside, outside = [], [], []
    for row in logs:
        own = max(row)
        raw = [math.exp(one - own) for one in row]
        total = sum(raw)
        totals.append(total * math.exp(own - top))
        inside.append(sum(map(operator.mul, raw, rates.holds)) / total)
        outside.append(sum(map(operator.mul, raw, rates.other)) / total)
    whole = sum(totals)
    return Belief(tuple(one / whole for one in totals), tuple(inside), tuple(outside))


def likely_range(cells: Sequence[tuple[int, int]], weights: Sequence[float], probability: float) -> tuple[int, int]:
    """Return the shortest range of neighbouring CELLS that contains the culprit with PROBABILITY."""
    return min(
        (
            (cells[first][0], cells[last][1])
            for first in range(len(cells))
            for last in range(first, len(cells))
            if sum(weights[first : last + 1]) >= probability
        ),
        key=lambda one: (one[1] - one[0], one),
    )


def choose(held: Belief, candidates: Sequence[int], built: frozenset[int], build_price: float) -> int:
    """Return the length in CANDIDATES of the prefix whose next trial is worth most for its price.

    Its worth is the extrinsic Jensen-Shannon divergence: how far the outcome expected under each hypothesis is from the
    one expected under all others. Unlike entropy, it keeps rewarding trials that separate the likeliest hypothesis from
    the rest, as a search that stops at a confidence needs. A prefix that is not in BUILT also costs BUILD_PRICE trials.
    """

    def value(length: int) -> tuple[float, int]:
        worth = _worth(held.weights, held.inside[:length] + held.outside[length:])
        return worth / (1.0 if length in built else 1 + build_price / AMORTISED), -length

    return max(candidates, key=value)


def _worth(weights: Sequence[float], chances: Sequence[float]) -> float:
    """Return the worth of a trial that hits with CHANCES under the hypotheses of WEIGHTS; see `choose`."""
    mean = sum(weight * chance for weight, chance in zip(weights, chances, strict=True))
    return sum(
        weight * _divergence(chance, (mean - weight * chance) / (1 - weight))
        for weight, chance in zip(weights, chances, strict=True)
        if 1e-12 < weight < 1 - 1e-12
    )


def _divergence(one: float, other: float) -> float:
    """Return the Kullback-Leibler divergence, in nats, between two coins."""
    least, most = 1e-12, 1 - 1e-12
    if not (least < one < most and least < other < most):  # seldom, and a search spends a third of its time here
        one, other = min(max(one, least), most), min(max(other, least), most)
    return one * math.log(one / other) + (1 - one) * math.log((1 - one) / (1 - other))
