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
_FINAL = ("apply", "build", "skipped")

ATTEMPTS = 3
"""How often a set is tried that fails to boot, or whose probe gives up, before it counts as untestable."""

_OUTWEIGHS = 3
"""Untestable trials for each conclusive one, from which on a set that was tested before is given up."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One image, tried once. KIND names the failure of a bad trial, STAGE is where an untestable one stopped.

    EVIDENCE is the sha256 of what the trial wrote (empty: nothing); SECONDS is how long it took. SAID is the end of
    what it wrote, for people, and RUN its run directory. Raises ValueError unless exactly the untestable trials have a
    stage.
    """

    outcome: TrialOutcome
    kind: str = ""
    stage: TrialStage | None = None
    evidence: str = ""
    seconds: float = 0.0
    said: str = ""
    run: str = ""

    def __post_init__(self) -> None:
        if (self.outcome == "untestable") != (self.stage is not None):
            raise ValueError("an untestable trial has a stage, and no other has")


@dataclass(frozen=True, slots=True)
class Tally:
    """The trials of one set, counted. KIND and STAGE are those of the last bad and the last untestable one.

    FINAL counts the untestable trials that another trial cannot change: the set does not apply or build, or it was
    skipped. ORDER has the conclusive trials in their order, `x` for bad and `+` for good.
    """

    bad: int = 0
    good: int = 0
    untestable: int = 0
    kind: str = ""
    stage: TrialStage | None = None
    final: int = 0
    order: str = ""

    def __post_init__(self) -> None:
        if len(self.order) != self.conclusive:  # made from counts alone
            object.__setattr__(self, "order", "x" * self.bad + "+" * self.good)
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
        )

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
