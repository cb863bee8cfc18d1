"""Intervals and p-values of what one run can show: paired differences over questions, and ratios over runs.

Each function takes numbers and returns numbers; its docstring names the method.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nvllm.core.statistics import cumulative

_NORMAL = statistics.NormalDist()


@dataclass(frozen=True, slots=True)
class Estimate:
    """An ESTIMATE from so many OBSERVATIONS, with its interval and P-value; None where they are too few for one."""

    value: float
    low: float | None
    high: float | None
    p: float | None
    observations: int


def paired_shares(differences: Sequence[float], level: float) -> Estimate:
    """Return the mean of DIFFERENCES of shares of correct answers, one a question, each from -1 to 1.

    The interval is that of Agresti and Min (2005): half a question is added to each cell of the paired table, so it has
    a width also where no question differs. Differences between -1 and 1, means of several runs, count as parts of a
    question, which makes it wider than it need be. The p-value is that of the exact sign test over the questions that
    differ.
    """
    count = len(differences)
    if not count:
        return Estimate(0.0, None, None, None, 0)
    better, worse = (sum(max(0.0, sign * one) for one in differences) for sign in (1, -1))
    size = count + 2
    middle = (better - worse) / size
    width = _NORMAL.inv_cdf((1 + level) / 2) * math.sqrt((better + worse + 1) - (better - worse) ** 2 / size) / size
    signs = [one > 0 for one in differences if one]
    low, high = max(-1.0, middle - width), min(1.0, middle + width)
    return Estimate((better - worse) / count, low, high, sign_test(sum(signs), len(signs)), count)


def sign_test(hits: int, count: int) -> float:
    """Return the two-sided p-value of HITS of COUNT if hits and misses are equally likely."""
    tail = sum(math.comb(count, one) for one in range(min(hits, count - hits) + 1))
    return min(1.0, 2.0 * tail / float(2**count))


def mean(values: Sequence[float], level: float) -> Estimate:
    """Return the mean of VALUES with Student's t interval, and the p-value of a mean of 0."""
    count = len(values)
    if count < 2:
        return Estimate(values[0] if values else 0.0, None, None, None, count)
    middle, deviation = statistics.fmean(values), statistics.stdev(values)
    if deviation == 0:
        return Estimate(middle, middle, middle, 1.0 if middle == 0 else 0.0, count)
    error = deviation / math.sqrt(count)
    width = student_quantile((1 + level) / 2, count - 1) * error
    p = 2 * (1 - student(abs(middle) / error, count - 1))
    return Estimate(middle, middle - width, middle + width, p, count)


def ratio(logarithms: Sequence[float], level: float) -> Estimate:
    """Return the ratio whose LOGARITHMS were measured: their mean with Student's t interval, and back."""
    found = mean(logarithms, level)
    low, high = (None if one is None else math.exp(one) for one in (found.low, found.high))
    return Estimate(math.exp(found.value), low, high, found.p, found.observations)


def share(hits: float, count: int, level: float) -> tuple[float, float]:
    """Return the interval of the share HITS of COUNT by Wilson's score."""
    if not count:
        return 0.0, 1.0
    z = _NORMAL.inv_cdf((1 + level) / 2)
    rate, size = hits / count, 1 + z * z / count
    middle = (rate + z * z / (2 * count)) / size
    width = z / size * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return max(0.0, middle - width), min(1.0, middle + width)


def student(value: float, freedom: int) -> float:
    """Return the probability that Student's t with FREEDOM degrees of freedom is at most VALUE."""
    tail = cumulative(freedom / 2, 0.5, freedom / (freedom + value * value)) / 2
    return 1 - tail if value > 0 else tail


def student_quantile(probability: float, freedom: int) -> float:
    """Return the value that Student's t with FREEDOM degrees of freedom does not exceed with PROBABILITY, above 0.5."""
    low, high = 0.0, 1.0
    while student(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values VALUES, corrected for their number by Holm's step-down method."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = highest
    return tuple(adjusted)
