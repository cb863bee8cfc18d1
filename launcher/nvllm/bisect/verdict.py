"""What trying a patch set comes to: good, bad of the declared kind, or untestable at some stage.

Only a failure of the declared kind is bad. Whatever keeps a set from being judged (it does not apply, does not
build, does not start, the probe itself gives up) is untestable, and untestable proves nothing about the set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

PatchSet: TypeAlias = frozenset[str]
"""Ids of patches. The series gives them their order, so two spellings of one set are one set."""

TrialOutcome = Literal["good", "bad", "untestable"]
TrialStage = Literal["apply", "build", "boot", "harness", "skipped"]
STAGES: tuple[TrialStage, ...] = ("apply", "build", "boot", "harness", "skipped")

_MANY_UNTESTABLE = 3
"""An engine that failed to start this often does not come, even if it came once."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One image tried once. KIND says which failure a bad one was, STAGE what kept an untestable one from a verdict.

    EVIDENCE is the sha256 of what the trial left behind (empty: nothing); SECONDS is how long it took.
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
        """Whether one and the same set was good and bad: the sign of a flaky failure."""
        return self.bad > 0 and self.good > 0

    @property
    def blocked(self) -> bool:
        """Whether this set is given up: it could not be tested, and more trials would hardly change that."""
        return self.untestable > 0 and (self.conclusive == 0 or self.untestable >= _MANY_UNTESTABLE)

    def plus(self, trial: Trial) -> Tally:
        """Return the tally with TRIAL in it."""
        if trial.outcome == "bad":
            return Tally(self.bad + 1, self.good, self.untestable, trial.kind or self.kind, self.stage)
        if trial.outcome == "good":
            return Tally(self.bad, self.good + 1, self.untestable, self.kind, self.stage)
        return Tally(self.bad, self.good, self.untestable + 1, self.kind, trial.stage)

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
    counted = Tally()
    for trial in trials:
        counted = counted.plus(trial)
    return counted


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is concluded about a set, from TALLY. CONFIDENCE is None where one trial was taken at its word."""

    outcome: TrialOutcome
    tally: Tally
    confidence: float | None = None

    @property
    def kind(self) -> str:
        return self.tally.kind if self.outcome == "bad" else ""

    @property
    def stage(self) -> TrialStage | None:
        return self.tally.stage if self.outcome == "untestable" else None

    def __str__(self) -> str:
        """Return the verdict as people read it: ``bad (exit 3), 0.998``."""
        detail = f" ({self.kind or self.stage})" if self.kind or self.stage else ""
        return f"{self.outcome}{detail}" + (f", {self.confidence:.3f}" if self.confidence is not None else "")
