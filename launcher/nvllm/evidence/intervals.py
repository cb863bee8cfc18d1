"""Intervals and p-values of what one run can show: paired differences over questions, and ratios over runs.

Each function takes numbers and returns numbers; its docstring names the method. LEVEL is that of an interval, from 0 to
1, and what differs by no more than MARGIN counts as the same. None of them gives an interval without a width, or a
p-value of 0, because observations agree: that they agree is no measure of how much they vary.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nvllm.core.statistics import cumulative

_NORMAL = statistics.NormalDist()
_POWER = _NORMAL.inv_cdf(0.8)
"""Runs that are needed are counted so that four out of five such series decide."""
_MOST = 10**6
"""More observations than this are not proposed."""
_EQUAL = 1e-9
"""Logarithms that differ by less are equal: so much is rounding."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate, its VALUE, from so many OBSERVATIONS, with its interval and P-value; None where they are too few.

    NEEDED is about how many observations like these would decide: the interval then excludes 0, or lies within the
    margin. None if this interval decides already, or nobody can tell.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    observations: int
    needed: int | None = None


def paired_shares(differences: Sequence[float], level: float, margin: float) -> Estimate:
    """Return the mean of DIFFERENCES of shares of correct answers, one a question, each from -1 to 1.

    The interval joins those of both shares of questions that differ, by Clopper and Pearson, as Newcombe's and Zou's
    method does (MOVER), with the correlation at the limit that is sought. Its coverage is at least LEVEL for any table
    of 5 to 200 questions; test_calibration.py computes it. Differences between -1 and 1, means of several runs, count
    as parts of a question, which makes it wider than it need be. The p-value is that of the exact sign test over the
    parts that differ.
    """
    count = len(differences)
    if not count:
        return Estimate(0.0, None, None, None, 0)
    better, worse = (sum(max(0.0, sign * difference) for difference in differences) for sign in (1, -1))
    low, high = _paired(better, worse, count, level)

    def at(size: int) -> tuple[float, float]:
        return _paired(better * size / count, worse * size / count, size, level)

    p = sign_test(better, worse)
    return Estimate((better - worse) / count, low, high, p, count, _needed(at, count, (low, high), margin))


def _paired(better: float, worse: float, count: int, level: float) -> tuple[float, float]:
    """Return the interval of the difference of shares if of COUNT questions so many are BETTER, and so many WORSE."""
    first, second = better / count, worse / count
    first_low, first_high = share(better, count, level)
    second_low, second_high = share(worse, count, level)
    down = _joined(first - first_low, second_high - second, first, second_high)
    up = _joined(first_high - first, second - second_low, first_high, second)
    return max(-1.0, first - second - down), min(1.0, first - second + up)


def _joined(first_part: float, second_part: float, first: float, second: float) -> float:
    """Return the length of both parts of an interval together, if the shares are FIRST and SECOND of one whole."""
    room = (1 - first) * (1 - second)
    correlation = min(1.0, math.sqrt(first * second / room)) if room > 0 else 1.0
    return math.sqrt(first_part**2 + 2 * correlation * first_part * second_part + second_part**2)


def sign_test(better: float, worse: float) -> float:
    """Return the two-sided p-value of so many BETTER and so many WORSE if both are equally likely."""
    return min(1.0, 2 * cumulative(max(better, worse), min(better, worse) + 1, 0.5)) if better + worse else 1.0


_REARRANGED, _DRAWN = 200_000, 20_000
"""Rearrangements that are all tried; of more of them so many are drawn."""


def rearranged(first: Sequence[float], other: Sequence[float]) -> float:
    """Return the two-sided p-value of the difference of the means of FIRST and OTHER, by a permutation test.

    It is the share of the ways to choose FIRST among all values in which the means differ as much. If those are too
    many, they are drawn with a fixed seed, and what was seen counts as one of them, so that p is not too small.
    """
    values, size = [*first, *other], len(first)
    if not first or not other:
        return 1.0
    total = math.fsum(values)

    def distance(chosen: Sequence[float]) -> float:
        part = math.fsum(chosen)
        return abs(part / size - (total - part) / len(other))

    seen = distance(first) - _EQUAL
    ways = math.comb(len(values), size)
    if ways <= _REARRANGED:
        return sum(distance(chosen) >= seen for chosen in itertools.combinations(values, size)) / ways
    drawn = random.Random(ways)  # noqa: S311 - a fixed seed: the same answers have the same p
    hits = sum(distance(drawn.sample(values, size)) >= seen for _ in range(_DRAWN))
    return (1 + hits) / (1 + _DRAWN)


def over_runs(questions: Estimate, by_run: Sequence[float], level: float, margin: float) -> tuple[Estimate, bool]:
    """Return the Estimate of QUESTIONS, widened by how much it differs from run to run, and whether that is most of it.

    BY_RUN has the same difference in each run. Both parts are independent, so their lengths add as squares.
    """
    runs = mean(by_run, level, margin)
    if questions.low is None or questions.high is None or questions.p is None or runs.low is None or runs.p is None:
        return questions, False
    width = runs.value - runs.low
    low = max(-1.0, questions.value - math.hypot(questions.value - questions.low, width))
    high = min(1.0, questions.value + math.hypot(questions.high - questions.value, width))
    # A p of 0, which rounding makes, has no quantile.
    scores = [-_NORMAL.inv_cdf(max(1e-300, p / 2)) for p in (questions.p, runs.p)]
    p = 2 * _NORMAL.cdf(-1 / math.hypot(*(1 / score for score in scores))) if min(scores) > 0 else 1.0
    widened = replace(questions, low=low, high=high, p=p)
    if _decides(low, high, margin):
        return replace(widened, needed=None), False
    by_runs = questions.needed is None or (runs.needed is not None and 2 * width > questions.high - questions.low)
    return (replace(widened, needed=runs.needed), True) if by_runs else (widened, False)


def lengths(differences: Sequence[float], typical: float, level: float, margin: float) -> Estimate:
    """Return the mean of DIFFERENCES of lengths, one a question, with Student's t interval.

    Two differences are added to what was seen, of the TYPICAL length, which is above 0, up and down. So the interval
    has a width also where no answer differs: questions that were not asked may.
    """
    count = len(differences)
    if count < 2:
        return Estimate(differences[0] if differences else 0.0, None, None, None, count)
    middle = statistics.fmean(differences)
    squares = sum((difference - middle) ** 2 for difference in differences)

    def deviation(size: int) -> float:
        return math.sqrt((squares * size / count + 2 * typical**2) / (size + 1))

    estimate = _student(middle, deviation(count), count, level)

    def at(size: int) -> tuple[float, float]:
        width = _width(deviation(size), size, level)
        return middle - width, middle + width

    return replace(estimate, needed=_needed(at, count, at(count), margin))


def mean(values: Sequence[float], level: float, margin: float) -> Estimate:
    """Return the mean of VALUES with Student's t interval, and the p-value of a mean of 0.

    Values that are all the same show no noise to compare with: they have no interval, and the p-value of the sign test.
    """
    count = len(values)
    if count < 2:
        return Estimate(values[0] if values else 0.0, None, None, None, count)
    middle, deviation = statistics.fmean(values), statistics.stdev(values)
    if deviation < _EQUAL:
        return Estimate(middle, None, None, sign_test(count if abs(middle) > _EQUAL else 0, 0), count)
    estimate = _student(middle, deviation, count, level)

    def at(size: int) -> tuple[float, float]:
        width = _width(deviation, size, level) + _POWER * deviation / math.sqrt(size)
        return middle - width, middle + width

    width = _width(deviation, count, level)
    return replace(estimate, needed=_needed(at, count, (middle - width, middle + width), margin))


def ratio(logarithms: Sequence[float], level: float, margin: float) -> Estimate:
    """Return the ratio whose LOGARITHMS were measured: their mean with Student's t interval, and back.

    MARGIN is a part of 1: 0.03 is a ratio from 1 / 1.03 to 1.03.
    """
    logarithm = mean(logarithms, level, math.log1p(margin))
    low, high = (None if limit is None else math.exp(limit) for limit in (logarithm.low, logarithm.high))
    return replace(logarithm, value=math.exp(logarithm.value), low=low, high=high)


def share(hits: float, count: int, level: float) -> tuple[float, float]:
    """Return the exact interval of the share HITS of COUNT, by Clopper and Pearson. HITS may be a part of one."""
    tail = (1 - level) / 2
    low = 0.0 if hits <= 0 else _beta_quantile(tail, hits, count - hits + 1)
    high = 1.0 if hits >= count else _beta_quantile(1 - tail, hits + 1, count - hits)
    return low, high


def share_needed(hits: float, count: int, level: float, floor: float) -> int | None:
    """Return about how many questions would tell a share like HITS of COUNT from FLOOR; None if none would."""
    rate = hits / count - floor

    def at(size: int) -> tuple[float, float]:
        low, high = share(hits * size / count, size, level)
        return low - floor, high - floor

    return _needed(at, count, at(count), 0.0) if rate else None


def _student(middle: float, deviation: float, count: int, level: float) -> Estimate:
    """Return Student's estimate from the mean and the DEVIATION of COUNT values, which is above 0."""
    width = _width(deviation, count, level)
    p = 2 * student(-abs(middle) * math.sqrt(count) / deviation, count - 1)
    return Estimate(middle, middle - width, middle + width, p, count)


def _width(deviation: float, count: int, level: float) -> float:
    return student_quantile((1 + level) / 2, count - 1) * deviation / math.sqrt(count)


def _decides(low: float, high: float, margin: float) -> bool:
    """Return whether the interval from LOW to HIGH excludes 0, or lies within MARGIN of it."""
    return low > 0 or high < 0 or (low >= -margin and high <= margin)


def _needed(
    at: Callable[[int], tuple[float, float]], count: int, now: tuple[float, float], margin: float
) -> int | None:
    """Return about how many observations decide, if AT gives the interval of so many; None if COUNT do, or none."""
    if _decides(*now, margin):
        return None
    size = count + 1
    while not _decides(*at(size), margin):
        if size >= _MOST:
            return None
        size *= 2
    low = max(count, size // 2)
    while size - low > max(1, size // 100):  # "about": one part in a hundred is enough
        middle = (low + size) // 2
        low, size = (low, middle) if _decides(*at(middle), margin) else (middle, size)
    return size


@functools.lru_cache(maxsize=65536)
def _beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the rate that a beta distribution of A and B does not exceed with PROBABILITY."""
    low, high = 0.0, 1.0
    for _ in range(45):  # halvings: to 3e-14
        middle = (low + high) / 2
        low, high = (middle, high) if cumulative(a, b, middle) < probability else (low, middle)
    return (low + high) / 2


def student(value: float, freedom: int) -> float:
    """Return the probability that Student's t with FREEDOM degrees of freedom is at most VALUE."""
    tail = cumulative(freedom / 2, 0.5, freedom / (freedom + value * value)) / 2
    return 1 - tail if value > 0 else tail


@functools.lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: int) -> float:
    """Return the value that Student's t with FREEDOM degrees of freedom does not exceed with PROBABILITY, above 0.5."""
    low, high = 0.0, 1.0
    while student(high, freedom) < probability:
        high *= 2
    for _ in range(80):  # halvings: after them the range is smaller than the precision of a float
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values VALUES, corrected for their number by Holm's step-down method."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return tuple(adjusted)
