"""Beliefs about flaky failures: rates with intervals, the position of the culprit, and the most useful next trial.

A *hit* is a trial that shows the effect, a *miss* one that does not. Sets that contain the culprit hit at one rate, all
others at another. Neither rate is known: both start as Beta distributions, are narrowed by the trials of the two ends,
and are integrated over, so that few trials of an end do not count as many.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

AMORTISED = 8.0
"""Trials of one image in a typical flaky search: the price of a build is divided by it."""


@dataclass(frozen=True, slots=True)
class Count:
    """Hits and misses."""

    hits: int = 0
    misses: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.hits + other.hits, self.misses + other.misses)


class Rate(Protocol):
    """A belief about the rate of hits."""

    def given(self, seen: Count) -> float:
        """Return the probability that the next trial hits, after SEEN."""

    def log_evidence(self, seen: Count) -> float:
        """Return the natural logarithm of the probability of SEEN in one fixed order."""


@dataclass(frozen=True, slots=True)
class Known:
    """A rate that is known exactly, for simulations and for comparison with methods that assume it."""

    rate: float

    def given(self, seen: Count) -> float:
        return self.rate

    def log_evidence(self, seen: Count) -> float:
        return seen.hits * math.log(self.rate) + seen.misses * math.log1p(-self.rate)


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

    def given(self, seen: Count) -> float:
        return self.plus(seen).mean

    def log_evidence(self, seen: Count) -> float:
        return _log_beta(self.a + seen.hits, self.b + seen.misses) - _log_beta(self.a, self.b)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the central interval that holds the rate with probability LEVEL."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def quantile(self, probability: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if _cumulative(self.a, self.b, middle) < probability else (low, middle)
        return (low + high) / 2


@functools.lru_cache(maxsize=65536)
def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _cumulative(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function: the probability of a rate below X, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # there the fraction of the mirrored function is the one that converges quickly
        return 1 - _cumulative(b, a, 1 - x)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - _log_beta(a, b)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for step in range(1, 300):
        for term in (
            step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step)),
            -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * result


@functools.lru_cache(maxsize=4096)
def higher(one: Count, other: Count) -> float:
    """Return the probability that the rate behind ONE is above the rate behind OTHER, both unknown before."""
    a, b = 1 + one.hits, 1 + one.misses
    c, d = 1 + other.hits, 1 + other.misses
    return sum(
        math.exp(_log_beta(c + i, b + d) - math.log(b + i) - _log_beta(1 + i, b) - _log_beta(c, d)) for i in range(a)
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """The rate of hits of a set that contains the culprit (HOLDS), and of any OTHER set."""

    holds: Rate
    other: Rate


def shows(rates: Rates, seen: Count) -> float:
    """Return the probability that a set with the trials SEEN contains the culprit, from a prior of one half."""
    difference = rates.other.log_evidence(seen) - rates.holds.log_evidence(seen)
    return 1 / (1 + math.exp(min(difference, 700.0)))


@dataclass(frozen=True, slots=True)
class Belief:
    """Where in a sequence of patches the culprit is: WEIGHTS[i] is the probability of patch i."""

    weights: tuple[float, ...]
    rates: Rates
    inside: tuple[Count, ...]
    """For each patch, the trials of prefixes that contain it."""
    outside: tuple[Count, ...]


def belief(rates: Rates, prior: Sequence[float], seen: Mapping[int, Count]) -> Belief:
    """Return the belief after SEEN, from PRIOR. SEEN has the trials by the length of the prefix that was tried."""
    inside, outside, logs = [], [], []
    held, free = sum((count for length, count in seen.items() if length > 0), Count()), seen.get(0, Count())
    for index, before in enumerate(prior):
        inside.append(held)
        outside.append(free)
        logs.append(math.log(before) + rates.holds.log_evidence(held) + rates.other.log_evidence(free))
        if (passed := seen.get(index + 1)) is not None:  # the next patch is the first that this prefix lacks
            held, free = Count(held.hits - passed.hits, held.misses - passed.misses), free + passed
    top = max(logs)
    raw = [math.exp(one - top) for one in logs]
    total = sum(raw)
    return Belief(tuple(one / total for one in raw), rates, tuple(inside), tuple(outside))


def choose(held: Belief, candidates: Sequence[int], built: frozenset[int], build_price: float) -> int:
    """Return the length in CANDIDATES of the prefix whose next trial is worth most for its price.

    Its worth is the extrinsic Jensen-Shannon divergence: how far the outcome expected under each hypothesis is from the
    one expected under all others. Unlike entropy, it keeps rewarding trials that separate the likeliest hypothesis from
    the rest, as a search that stops at a confidence needs. A prefix that is not in BUILT also costs BUILD_PRICE trials.
    """
    inside = [held.rates.holds.given(seen) for seen in held.inside]
    outside = [held.rates.other.given(seen) for seen in held.outside]

    def value(length: int) -> tuple[float, int]:
        worth = _worth(held.weights, inside[:length] + outside[length:])
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
