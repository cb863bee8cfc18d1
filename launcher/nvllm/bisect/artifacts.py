"""The artifacts of a bisect: several compiles of each set, below `<bisect>/artifacts`, which its trials load in turn.

A trial that compiles for itself says nothing about the next one, because both have artifacts of their own. Trials that
load one of few say whether it matters which one: an artifact is a group of trials of its own (`posterior`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nvllm.bless.compiled import Compiling, directory_of
from nvllm.core.paths import Places
from nvllm.core.progress import Progress
from nvllm.host.locks import HeldLocks
from nvllm.serve import servehash
from nvllm.serve.examination import Examination
from nvllm.trials.artifact import Artifact

_OTHERWISE = "or without --artifacts, where each trial compiles for itself"


def artifacts_of(journal: Path) -> Path:
    """Return where the artifacts of the bisect with the file JOURNAL are."""
    return journal.parent / "artifacts"


@dataclass(frozen=True, slots=True)
class SetArtifacts:
    """COUNT artifacts of each set, below DIRECTORY. TRIED returns how many trials a set has."""

    directory: Path
    count: int
    tried: Callable[[tuple[str, ...]], int]
    places: Places
    progress: Progress

    def next(self, chosen: tuple[str, ...], examination: Examination, held_locks: HeldLocks) -> Artifact:
        """Return what the next trial of CHOSEN loads; see `Compiling.artifact`."""
        number = 1 + self.tried(chosen) % self.count
        directory = self.directory / directory_of(servehash.compile_key(examination.plan), number)
        again = f"{held_locks.command} --artifacts {self.count}"
        damaged = f"rm -r {shlex.quote(str(directory))} && {again}"
        work = Compiling(examination, self.places, held_locks, self.progress, again, _OTHERWISE, damaged)
        return work.artifact(directory, number)
