"""The cache of trials: every trial that was run here, by build hash, probe and class of host.

A later bisect that builds the same image, with the same probe on the same class of host, takes the trials from the
cache in their order before it runs new ones. A line that cannot be read is ignored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from nvllm.core import canonical, paths, reading
from nvllm.trials.trial import STAGES, Trial


@dataclass(frozen=True, slots=True)
class TrialCache:
    """The cache below DIRECTORY for one probe (TEST, its hash) on one class of HOST."""

    directory: Path
    test: str
    host: str

    def recall(self, build_hash: str) -> tuple[Trial, ...]:
        """Return the trials of the image BUILD_HASH, in the order in which they were run."""
        try:
            lines = reading.content(self._path(build_hash), reading.STATE).split(b"\n")
        except OSError:
            return ()
        return tuple(trial for line in lines if (trial := _trial(line)) is not None)

    def remember(self, build_hash: str, trial: Trial) -> None:
        """Add TRIAL of the image BUILD_HASH. A cache that cannot be written is no error: it only costs trials later."""
        with contextlib.suppress(OSError):
            paths.ensure(self.directory)
            # O_APPEND: bisects of one image write into the same file, and each line is one write.
            descriptor = os.open(self._path(build_hash), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # The newline before it ends a line that a kill has torn.
                os.write(descriptor, b"\n" + canonical.encode(asdict(trial)) + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def forget(self, build_hash: str, trials: Iterable[Trial]) -> None:
        """Drop TRIALS of the image BUILD_HASH, one for each; other bisects may have others of the same image."""
        kept = list(self.recall(build_hash))
        for trial in trials:
            if trial in kept:
                kept.remove(trial)
        # A kill in between costs what it forgets: those trials are run again.
        self._path(build_hash).unlink(missing_ok=True)
        for trial in kept:
            self.remember(build_hash, trial)

    def _path(self, build_hash: str) -> Path:
        key = canonical.digest("nvllm.trial/1", {"build": build_hash, "test": self.test, "host": self.host})
        return self.directory / f"{key}.jsonl"


def _trial(line: bytes) -> Trial | None:
    try:
        value = canonical.decode(line)
    except ValueError:
        return None
    match value:
        case {
            "outcome": "good" | "bad" | "untestable" as outcome,
            "kind": str(kind),
            "stage": stage,
            "evidence": str(evidence),
            "seconds": int() | float() as seconds,
            **rest,
        } if (stage is not None) == (outcome == "untestable") and (stage is None or stage in STAGES):
            lines, run, artifact = (str(rest.get(name, "")) for name in ("said", "run", "artifact"))
            return Trial(outcome, kind, stage, evidence, float(seconds), lines, run, artifact)
        case _:
            return None
