"""The question that a search answers: which patches, between which ends, how sure to be; and the trials so far."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from nvllm.bisect.combinations import Combinations
from nvllm.bisect.posterior import Count, Rates
from nvllm.bisect.verdict import PatchSet, Tally, TrialOutcome

EndName = Literal["bad", "good"]
Find = Literal["break", "fix"]
Mode = Literal["ordered", "set"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How sure the answer must be, and what it may cost.

    REPEATS trials prove each end, and each line of the certificate, of a steady failure. PATIENCE is the most trials
    that one set gets. BUILD_PRICE is the cost of a build, in trials. MAX_TRIALS and MAX_HOURS, of builds and trials
    added up, end the search with the best answer so far. RATES are set in simulations that know them.
    """

    confidence: float = 0.99
    repeats: int = 3
    patience: int = 60
    flaky: bool = False
    build_price: float = 1.0
    max_trials: int = 400
    max_hours: float | None = None
    rates: Rates | None = None


@dataclass(frozen=True, slots=True)
class SearchEvidence:
    """The trials so far: a tally for every set that was tried, and the sets that have an image.

    SPENT is what they took, in seconds. TRIED is the number of trials; None: as many as the tallies have. Sets of the
    same source share their trials, so the tallies may have more.
    """

    tallies: Mapping[PatchSet, Tally]
    built: Set[PatchSet] = frozenset()
    spent: float = 0.0
    tried: int | None = None
    trees: Mapping[PatchSet, str] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        return sum(one.trials for one in self.tallies.values()) if self.tried is None else self.tried

    def tally(self, chosen: PatchSet) -> Tally:
        return self.tallies.get(chosen, Tally())


@dataclass(frozen=True, slots=True)
class Problem:
    """The search for the patches that cause the effect, among those of HIGH that LOW lacks.

    The effect is the declared failure, or its absence if FIND is ``fix``. HIGH shows it and LOW does not.
    FURTHER: after one cause, search for others that share no patch with it.
    """

    combinations: Combinations
    low: PatchSet
    high: PatchSet
    find: Find = "break"
    mode: Mode = "ordered"
    settings: Settings = field(default_factory=Settings)
    further: bool = False

    @property
    def items(self) -> tuple[str, ...]:
        """The patches that may be the cause, in the order of the series."""
        return self.combinations.ordered(self.high - self.low)

    @property
    def ends(self) -> dict[EndName, PatchSet]:
        """The bad end and the good one."""
        bad, good = (self.high, self.low) if self.find == "break" else (self.low, self.high)
        return {"bad": bad, "good": good}

    def effect(self, outcome: TrialOutcome) -> bool:
        """Return whether OUTCOME shows the effect."""
        return outcome == ("bad" if self.find == "break" else "good")

    def count(self, tally: Tally) -> Count:
        """Return TALLY as hits and misses of the effect."""
        return Count(tally.bad, tally.good) if self.find == "break" else Count(tally.good, tally.bad)

    def reached(self, evidence: SearchEvidence) -> str:
        """Return which limit of the settings EVIDENCE has reached; empty if none."""
        most, hours = self.settings.max_trials, self.settings.max_hours
        if evidence.trials >= most:
            return f"the limit of {most} trials is reached (--max-trials)"
        if hours is not None and evidence.spent >= 3600 * hours:
            return f"the limit of {hours:g} hours of builds and trials is reached (--max-hours)"
        return ""
