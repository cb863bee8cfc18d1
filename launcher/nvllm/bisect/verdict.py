"""The result of trying a patch set: good, bad, or untestable at some stage.

Only a failure of the declared kind is bad. A set that does not apply, build or start, or whose probe gives up, is
untestable, and untestable proves nothing about the set.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

PatchSet: TypeAlias = frozenset[str]
"""Ids of patches, without an order: the series gives them theirs."""

TrialOutcome = Literal["good", "bad", "untestable"]
TrialStage = Literal["apply", "build", "boot", "harness", "skipped"]
STAGES: tuple[TrialStage, ...] = ("apply", "build", "boot", "harness", "skipped")

_MANY_UNTESTABLE = 3
"""Untestable trials after which a set is given up, even if it was tested before."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One image, tried once. KIND names the failure of a bad trial, STAGE is where an untestable one stopped.

    EVIDENCE is the sha256 of what the trial wrote (empty: nothing); SECONDS is how long it took. Raises ValueError
    unless exactly the untestable trials have a stage.
    """

    outcome: TrialOutcome
    kind: str = ""
    stage: TrialStage | None = None
    evidence: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if (self.outcome == "untestable") != (self.stage is not None):
            raise ValueError("an untestable trial has a stage, and no other has")


@dataclass(frozen=True, slots=True)
class Tally:
    """The trials of one set, counted. KIND and STAGE are those of the last bad and the last untestable one."""

    bad: int = 0
    good: int = 0
    untestable: int = 0
    kind: str = ""
    stage: TrialStage | None = None

    @property
    def conclusive(self) -> int:
        return self.bad + self.good

    @property
    def mixed(self) -> bool:
        """Whether the same set was both good and bad, which shows that the failure is flaky."""
        return self.bad > 0 and self.good > 0

    @property
    def blocked(self) -> bool:
        """Whether this set is given up: it could not be tested, and more trials are unlikely to change that."""
        return self.untestable > 0 and (self.conclusive == 0 or self.untestable >= _MANY_UNTESTABLE)

    def plus(self, trial: Trial) -> Tally:
        """Return the tally with TRIAL in it."""
        bad, good, untestable = (trial.outcome == one for one in ("bad", "good", "untestable"))
        return self + Tally(int(bad), int(good), int(untestable), trial.kind if bad else "", trial.stage)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.bad + other.bad,
            self.good + other.good,
            self.untestable + other.untestable,
            other.kind or self.kind,
            other.stage or self.stage,
        )

    def __str__(self) -> str:
        if self.blocked:
            return f"untestable ({self.stage})"
        if not self.conclusive:
            return "not tried"
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
