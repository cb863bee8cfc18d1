"""Confidence: what K trials without a failure show about a cache, and how many trials a claim needs.

If each fresh start of a cache is good with probability r, then K starts are all good with probability r^K. So after
K good ones of K, r is at least 0.05^(1/K) with 95 % confidence: 0.55 for 5, 0.90 for 29.

Only fresh starts are trials. Repeats of a prompt inside one start run the same loaded binary on the same input, so a
hundred equal answers are one sample. They find something else, state that leaks from one request into the next, and
are counted apart.
"""

from __future__ import annotations

import math

from nvllm.core.refusal import refuse

MISSED = 0.05
"""The probability, accepted by convention, that a worse cache has passed."""


def lower_bound(boots: int) -> float:
    """Return the lower 95 % bound of the rate of good starts after BOOTS good ones of BOOTS; 0 for none."""
    return MISSED ** (1 / boots) if boots > 0 else 0.0


def boots_for(rate: float) -> int:
    """Return how many starts, all good, show that RATE of all are good. Raises Refused NV108 unless 0 < RATE < 1."""
    if not 0 < rate < 1:
        cure = "write a rate such as --claim 0.90"
        raise refuse("NV108", "--claim", "a rate above 0 and below 1", f"{rate:g}", cure)
    boots = max(1, math.ceil(math.log(MISSED) / math.log(rate)))
    # The quotient may be rounded the wrong way where it is a whole number; the bound itself decides.
    while lower_bound(boots) < rate:
        boots += 1
    while boots > 1 and lower_bound(boots - 1) >= rate:
        boots -= 1
    return boots
