"""The claim of a bless: what K trials without a failure say about a cache, and how many a claim needs.

If each fresh boot of a cache is good with probability r, then K boots are all good with probability r^K. So after
K of K, r is at least 0.05^(1/K) with 95 % confidence: 0.55 for 5, 0.90 for 29.

Only fresh boots are trials. Prompts that are repeated inside one boot run the same loaded binary on the same
input; a deterministic engine gives the same answer each time, and a hundred of them are one sample. They find
something else, state that leaks from one request into the next, and are counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nvllm.core.refusal import refuse

MISSED = 0.05
"""The chance, accepted by convention, that a worse cache has passed."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One answer: of PROMPT in BOOT, which is one container's id. GOOD is whether it was the right one."""

    boot: str
    prompt: str
    good: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """What was seen, and what it supports. BOUND is the lower 95 % bound of the rate of good boots, or 0."""

    boots: int
    """Fresh boots, each counted once."""
    good_boots: int
    """Boots in which no answer was wrong."""
    prompts: int
    """Different prompts per boot, summed: repeats of one prompt in one boot count once."""
    replays: int
    """All answers, repeats included. They add nothing to the bound."""
    bound: float

    def supports(self, rate: float) -> bool:
        """Say whether what was seen supports that at least RATE of all boots are good."""
        return self.good_boots == self.boots and self.boots >= boots_for(rate)

    def __str__(self) -> str:
        text = f"{self.good_boots} of {self.boots} fresh boots good"
        if self.good_boots == self.boots and self.boots:
            text += f": at least {math.floor(self.bound * 100)} % of boots are, with 95 % confidence"
        return f"{text}; {self.replays} answers to {self.prompts} prompts inside them"


def lower_bound(boots: int) -> float:
    """Return the lower 95 % bound of the rate of good boots after BOOTS of BOOTS; 0 for none."""
    return MISSED ** (1 / boots) if boots > 0 else 0.0


def boots_for(rate: float) -> int:
    """Return how many boots, all good, support the claim RATE. Raises Refused NV108 unless 0 < RATE < 1."""
    if not 0 < rate < 1:
        cure = "write a rate such as --claim 0.90"
        raise refuse("NV108", "--claim", "a rate above 0 and below 1", f"{rate:g}", cure)
    boots = max(1, math.ceil(math.log(MISSED) / math.log(rate)))
    # Where the quotient is a whole number, its rounding decides; the bound itself has the last word.
    while lower_bound(boots) < rate:
        boots += 1
    while boots > 1 and lower_bound(boots - 1) >= rate:
        boots -= 1
    return boots


def claimed(replays: Iterable[Replay]) -> Claim:
    """Return what REPLAYS support: a boot is one sample, and it is good if every answer in it is."""
    boots: dict[str, bool] = {}
    prompts: set[tuple[str, str]] = set()
    count = 0
    for one in replays:
        boots[one.boot] = boots.get(one.boot, True) and one.good
        prompts.add((one.boot, one.prompt))
        count += 1
    return _claim(boots, len(prompts), count)


def _claim(boots: Mapping[str, bool], prompts: int, replays: int) -> Claim:
    good = sum(boots.values())
    return Claim(len(boots), good, prompts, replays, lower_bound(len(boots)) if good == len(boots) else 0.0)
