"""Percentiles, as `numpy.percentile` and so vLLM's own bench defines them: figures of both can be compared."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that PERCENT (1 to 99) of VALUES do not exceed, interpolated between its two neighbours."""
    some = values if len(values) > 1 else [*values, *values]
    return statistics.quantiles(some, n=100, method="inclusive")[percent - 1]
