"""A trial: one image, started in a fresh container and tried once; what is tried, what judges it, and its verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from nvllm.core.fields import NOT_EMPTY, WRITTEN, Seconds, Word

TrialOutcome = Literal["good", "bad", "untestable"]
TrialStage = Literal["apply", "build", "boot", "harness", "skipped"]
STAGES: tuple[TrialStage, ...] = ("apply", "build", "boot", "harness", "skipped")

Ids = tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One image, tried once. KIND names the failure of a bad trial, STAGE is where an untestable one stopped.

    EVIDENCE is the sha256 of what the trial wrote (empty: nothing); SECONDS is how long it took. SAID is the end of
    what it wrote, for people, and RUN its run directory. ARTIFACT is the hash of the compile cache that it loaded;
    empty if it compiled for itself, or nothing. Raises ValueError unless exactly the untestable trials have a stage.
    """

    outcome: TrialOutcome
    kind: str = ""
    stage: TrialStage | None = None
    evidence: str = ""
    seconds: float = 0.0
    said: str = ""
    run: str = ""
    artifact: str = ""

    def __post_init__(self) -> None:
        if (self.outcome == "untestable") != (self.stage is not None):
            raise ValueError("an untestable trial has a stage, and no other has")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A TRIAL, and the bytes that it left as its evidence, as WRITTEN."""

    trial: Trial
    written: bytes = b""


def evidenced(trial: Trial, written: bytes) -> TrialResult:
    """Return TRIAL with the hash of what was WRITTEN as its evidence."""
    return TrialResult(replace(trial, evidence=hashlib.sha256(written).hexdigest()), written)


@dataclass(frozen=True, slots=True)
class BisectProbe:
    """What judges an image. SHA256 covers program and settings; REGRESS, if given, is the one failure that counts."""

    command: Annotated[tuple[str, ...], NOT_EMPTY]
    sha256: str
    regress: Annotated[str, WRITTEN] = ""
    build_only: Annotated[bool, WRITTEN] = False


@dataclass(frozen=True, slots=True)
class Built:
    """CHOSEN has an image. Sets with the same TREE, the hash of the patched source (empty: unknown), are one source."""

    chosen: Ids
    tree: str
    build_hash: str
    image: str
    seconds: Seconds
