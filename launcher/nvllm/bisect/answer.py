"""What a search answers: the next trial; what was found and how it was proved; or why the search stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.homogeneity import BuildSpread
from nvllm.bisect.problem import Tally, Verdict

Purpose = Literal["end", "search", "certificate", "watch"]
"""What a trial is for: to prove an end, to find the culprits, to prove the result, or to see whether the rate falls."""


@dataclass(frozen=True, slots=True)
class NextTrial:
    """The search needs one more trial of CHOSEN. REASON tells people why."""

    chosen: PatchSet
    reason: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Stopped:
    """The search ends with the best answer so far, because of REASON: the failure rate has fallen, or may have."""

    reason: str


@dataclass(frozen=True, slots=True)
class Line:
    """One set of a certificate: its ROLE in the proof, and its verdict.

    HOLDS: it is the verdict that the proof needs, and it is sure enough: `Settings.repeats` trials that agree if the
    failure is steady, `Settings.confidence` if it is flaky.
    """

    role: str
    chosen: PatchSet
    verdict: Verdict
    holds: bool


@dataclass(frozen=True, slots=True)
class Done:
    """What was found.

    CULPRITS, in the order of the series: in set mode the cause; in ordered mode the patch with which the effect begins,
    or the range of patches that contains it if the sets between cannot be tested. ALONG: patches that no set with the
    cause can lack, each with the culprits that require it; whether they are a part of the cause cannot be told. EXACT:
    it is no range. FIRST, in ordered mode: every shorter prefix was tried and lacks the effect.
    CERTIFIED: every line of the certificate holds, and all together leave no more doubt than the confidence allows.
    REST is everything without the culprits: if it shows the effect, there is another cause. FURTHER are the causes
    found there. STOPPED says why the search ended before its end. SPREAD says how much builds differ, None if the
    failure is steady. LACKING are the trials of the end that lacks the effect. POSTERIOR is the probability of each
    item to be a culprit; see `beliefs`.
    """

    culprits: tuple[str, ...]
    exact: bool
    certificate: tuple[Line, ...]
    certified: bool
    flaky: bool
    posterior: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()
    along: tuple[tuple[str, tuple[str, ...]], ...] = ()
    first: bool = False
    rest: Line | None = None
    further: tuple[Done, ...] = ()
    stopped: str = ""
    spread: BuildSpread | None = None
    lacking: Tally = field(default_factory=Tally)

    @property
    def whole(self) -> PatchSet:
        """The culprits, with what comes along."""
        return frozenset((*self.culprits, *(name for name, _ in self.along)))
