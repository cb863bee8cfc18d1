"""Statistics that several rooms use: percentiles, and the distribution of a rate.

Percentiles are as `numpy.percentile` and so vLLM's own bench defines them: figures of both can be compared.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that PERCENT (1 to 99) of VALUES do not exceed, interpolated between its two neighbours."""
    some = values if len(values) > 1 else [*values, *values]
    return statistics.quantiles(some, n=100, method="inclusive")[percent - 1]


@functools.lru_cache(maxsize=65536)
def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def cumulative(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function: the probability of a rate below X, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # there the fraction of the mirrored function is the one that converges quickly
        return 1 - cumulative(b, a, 1 - x)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - _log_beta(a, b)) / a
    tiny = 1e-300  # Lentz's method puts it in the place of a 0 that it would divide by
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for step in range(1, 300):  # O(sqrt(max(a, b))) steps: 250 for counts of 200,000
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
