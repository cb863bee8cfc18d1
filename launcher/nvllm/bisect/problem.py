"""The question that a search answers, and the trials so far.

The question: which patches, between which ends, how sure to be. A trial is good, bad, or untestable at some stage: only
a failure of the declared kind is bad. A set that does not apply, build or start, or whose probe gives up, is
untestable, and untestable proves nothing about the set.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from nvllm.bisect import posterior
from nvllm.bisect.combinations import Combinations, PatchSet
from nvllm.bisect.posterior import Count, Rates
from nvllm.trials.trial import Trial, TrialOutcome, TrialStage

_FINAL = ("apply", "build", "skipped")

ATTEMPTS = 3
"""How often a set is tried that fails to boot, or whose probe gives up, before it counts as untestable."""

MORE_CAUSES = 3
"""How many times the trials a search for all causes of a flaky failure may take."""

_OUTWEIGHS = 3
"""Untestable trials for each conclusive one, from which on a set that was tested before is given up."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The trials of one set, counted. KIND and STAGE are those of the last bad and the last untestable one.

    FINAL counts the untestable trials that another trial cannot change: the set does not apply or build, or it was
    skipped. ORDER has the conclusive trials in their order, `x` for bad and `+` for good, and LOADED the artifact of
    each, empty for one that compiled for itself.
    """

    bad: int = 0
    good: int = 0
    untestable: int = 0
    kind: str = ""
    stage: TrialStage | None = None
    final: int = 0
    order: str = ""
    loaded: tuple[str, ...] = ()

    def __post_init__(self) -> None:  # object.__setattr__: the dataclass is frozen
        if len(self.order) != self.conclusive:  # made from counts alone
            object.__setattr__(self, "order", "x" * self.bad + "+" * self.good)
        if len(self.loaded) != self.conclusive:
            object.__setattr__(self, "loaded", ("",) * self.conclusive)
        if self.stage in _FINAL and self.untestable and not self.final:
            object.__setattr__(self, "final", 1)

    @property
    def conclusive(self) -> int:
        return self.bad + self.good

    @property
    def trials(self) -> int:
        return self.conclusive + self.untestable

    @property
    def mixed(self) -> bool:
        """Whether the same set was both good and bad, which shows that the failure is flaky."""
        return self.bad > 0 and self.good > 0

    @property
    def blocked(self) -> bool:
        """Whether this set gets no more trials, because another is unlikely to be conclusive.

        Its conclusive trials, if there are any, still count.
        """
        return self.final > 0 or self.untestable >= max(ATTEMPTS, _OUTWEIGHS * (1 + self.conclusive))

    @property
    def unknown(self) -> bool:
        """Whether this set is given up and no trial of it was conclusive."""
        return self.blocked and not self.conclusive

    def plus(self, trial: Trial) -> Tally:
        """Return the tally with TRIAL in it."""
        return self + Tally(
            int(trial.outcome == "bad"),
            int(trial.outcome == "good"),
            int(trial.outcome == "untestable"),
            trial.kind if trial.outcome == "bad" else "",
            trial.stage,
            int(trial.stage in _FINAL),
            loaded=(trial.artifact,) * (trial.outcome != "untestable"),
        )

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.bad + other.bad,
            self.good + other.good,
            self.untestable + other.untestable,
            other.kind or self.kind,
            other.stage or self.stage,
            self.final + other.final,
            self.order + other.order,
            self.loaded + other.loaded,
        )

    @property
    def artifacts(self) -> Mapping[str, Tally]:
        """The conclusive trials of each artifact; empty if none was loaded. What compiled for itself is one of them."""
        if not any(self.loaded):
            return {}
        orders = dict.fromkeys(self.loaded, "")
        for artifact, mark in zip(self.loaded, self.order, strict=True):
            orders[artifact] += mark
        return {artifact: Tally(order.count("x"), order.count("+"), order=order) for artifact, order in orders.items()}

    def __str__(self) -> str:
        if self.unknown:
            return f"untestable ({self.stage})"
        if not self.conclusive:
            return f"not tried to the end ({self.stage})" if self.untestable else "not tried"
        return f"bad {self.bad} of {self.conclusive}" if self.bad else f"good {self.good} of {self.conclusive}"


def tally(trials: Iterable[Trial]) -> Tally:
    """Return TRIALS, counted."""
    return functools.reduce(Tally.plus, trials, Tally())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the search concludes about a set from TALLY. CONFIDENCE is None where the failure counts as steady."""

    outcome: TrialOutcome
    tally: Tally
    confidence: float | None = None

    @property
    def detail(self) -> str:
        """The kind of failure of a bad set, or the stage at which an untestable one stops; else empty."""
        return {"bad": self.tally.kind, "untestable": self.tally.stage or "", "good": ""}[self.outcome]

    def __str__(self) -> str:
        """Return the verdict for people: ``bad (exit 3), 0.998``."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.outcome}{detail}" + (f", {self.confidence:.3f}" if self.confidence is not None else "")


EndName = Literal["bad", "good"]
Find = Literal["break", "fix"]
Mode = Literal["ordered", "set"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How sure the answer must be, and what it may cost.

    REPEATS trials prove each end, and each line of the certificate, of a steady failure. PATIENCE is the most trials
    that one set gets. BUILD_PRICE is the cost of a build, in trials. MAX_TRIALS and MAX_HOURS, of builds and trials
    added up, end the search with the best answer so far. SAME_BYTES: all boots of a set run the same bytes, so builds
    cannot differ. RATES are set in simulations that know them.
    """

    confidence: float = 0.99
    repeats: int = 3
    patience: int = 60
    flaky: bool = False
    build_price: float = 1.0
    max_trials: int = 400
    max_hours: float | None = None
    same_bytes: bool = False
    rates: Rates | None = None


@dataclass(frozen=True, slots=True)
class SearchEvidence:
    """The trials so far: a tally for every set that was tried, and the sets that have an image.

    SPENT is what they took, in seconds. TRIED is the number of trials; None: as many as the tallies have. Sets of the
    same source share their trials, so the tallies may have more. HISTORY has the set and the mark (see `Tally`) of each
    conclusive trial, in the order of all trials.
    """

    tallies: Mapping[PatchSet, Tally]
    built: Set[PatchSet] = frozenset()
    spent: float = 0.0
    tried: int | None = None
    trees: Mapping[PatchSet, str] = field(default_factory=dict)
    history: tuple[tuple[PatchSet, str], ...] = ()

    @property
    def trials(self) -> int:
        return sum(tally.trials for tally in self.tallies.values()) if self.tried is None else self.tried

    def tally(self, chosen: PatchSet) -> Tally:
        return self.tallies.get(chosen, Tally())

    def within(self, upper: PatchSet) -> SearchEvidence:
        """Return the evidence on UPPER and its parts alone."""
        tallies = {chosen: tally for chosen, tally in self.tallies.items() if chosen <= upper}
        return replace(self, tallies=tallies, history=tuple(entry for entry in self.history if entry[0] <= upper))

    def after(self, chosen: PatchSet, trial: Trial) -> SearchEvidence:
        """Return the evidence as if CHOSEN had been built, and tried once more as TRIAL."""
        tallies = {**self.tallies, chosen: self.tally(chosen).plus(trial)}
        history = (*self.history, *((chosen, mark) for mark in Tally().plus(trial).order))
        return replace(self, tallies=tallies, built={*self.built, chosen}, tried=self.trials + 1, history=history)


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

    def rates_before(self, evidence: SearchEvidence) -> Rates:
        """Return the rates of hits before any trial of EVIDENCE."""
        several = any(any(tally.loaded) for tally in evidence.tallies.values())
        return posterior.unknown(fix=self.find == "fix", same_bytes=self.settings.same_bytes, several=several)

    def effect(self, outcome: TrialOutcome) -> bool:
        """Return whether OUTCOME shows the effect."""
        return outcome == ("bad" if self.find == "break" else "good")

    def count(self, tally: Tally) -> Count:
        """Return TALLY as hits and misses of the effect."""
        apart = tuple(self.count(artifact) for artifact in tally.artifacts.values())
        return Count(tally.bad, tally.good, apart) if self.find == "break" else Count(tally.good, tally.bad, apart)

    @property
    def most_trials(self) -> int:
        """The trials after which the search ends. Several causes of a flaky failure, each at a rate of its own, look
        like builds that differ, so also the first one takes more trials."""
        return self.settings.max_trials * (MORE_CAUSES if self.further and self.settings.flaky else 1)

    def reached(self, evidence: SearchEvidence) -> str:
        """Return which limit EVIDENCE has reached, of trials or hours; empty if none."""
        most, hours = self.most_trials, self.settings.max_hours
        if evidence.trials >= most:
            return f"the limit of {most} trials is reached (--max-trials)"
        if hours is not None and evidence.spent >= 3600 * hours:
            return f"the limit of {hours:g} hours of builds and trials is reached (--max-hours)"
        return ""
