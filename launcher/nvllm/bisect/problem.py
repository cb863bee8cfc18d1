"""What a search is asked: which patches, between which ends, how sure to be, and what the trials said so far."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from nvllm.bisect.combinations import Combinations
from nvllm.bisect.posterior import Count, Rates
from nvllm.bisect.verdict import PatchSet, Tally, TrialOutcome

Find = Literal["break", "fix"]
Mode = Literal["ordered", "set"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How sure to be, and at what price.

    REPEATS trials prove each end, and each line of the certificate, of a failure that always shows. PATIENCE is how
    many trials one set gets at most. BUILD_PRICE is what a build costs, in trials. RATES are given where they are
    known, in simulations.
    """

    confidence: float = 0.99
    repeats: int = 3
    patience: int = 40
    flaky: bool = False
    build_price: float = 1.0
    rates: Rates | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What is searched: the patches of HIGH that LOW lacks, for those that bring the effect."""

    combinations: Combinations
    low: PatchSet
    high: PatchSet
    find: Find = "break"
    mode: Mode = "ordered"
    settings: Settings = field(default_factory=Settings)

    @property
    def items(self) -> tuple[str, ...]:
        return self.combinations.ordered(self.high - self.low)

    def effect(self, outcome: TrialOutcome) -> bool:
        return outcome == ("bad" if self.find == "break" else "good")

    def count(self, tally: Tally) -> Count:
        """Return TALLY as hits and misses of the effect that is searched for."""
        return Count(tally.bad, tally.good) if self.find == "break" else Count(tally.good, tally.bad)


@dataclass(frozen=True, slots=True)
class SearchEvidence:
    """What the trials say: a tally for every set that was tried, and which sets have an image."""

    tallies: Mapping[PatchSet, Tally]
    built: Set[PatchSet] = frozenset()

    def tally(self, chosen: PatchSet) -> Tally:
        return self.tallies.get(chosen, Tally())
