"""What tasks leave on this host: their notes, the containers with their labels, and the programs of their probes.

What runs for a task is noted before it starts and labelled with the task. A worker that was killed leaves containers
that the next one on this host finds and removes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import paths, proc, reading
from nvllm.core.paths import Places
from nvllm.engine.engine import Engine
from nvllm.host.facts import TASK_LABEL, ContainerFact


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What tasks left below PLACES and in ENGINE."""

    places: Places
    engine: Engine

    @property
    def _notes(self) -> Path:
        return self.places.state / "worker"

    @contextlib.contextmanager
    def noted(self, task: str) -> Iterator[None]:
        """Note TASK while it runs, so that the next worker finds what it leaves if this one is killed."""
        note = paths.ensure(self._notes) / task
        note.touch(0o600)
        try:
            yield
        finally:
            self._remove([task])
            note.unlink(missing_ok=True)

    def sweep(self) -> None:
        """End everything that tasks on this host left. The caller holds the worker's lock, so no task runs."""
        for ledger in sorted((self.places.state / "task").glob("*/probes")):
            proc.Programs(ledger).end_left()
        names = self.noted_names()
        self._remove(names)
        for name in names:
            (self._notes / name).unlink(missing_ok=True)

    def noted_names(self) -> list[str]:
        """Return the names of the tasks that are noted: those that run, and those whose worker was killed."""
        return [note.name for note in reading.listed(self._notes, "*")] if self._notes.is_dir() else []

    def containers(self, tasks: Collection[str]) -> list[ContainerFact]:
        """Return the containers of TASKS."""
        return [container for container in self.engine.containers() if container.labels.get(TASK_LABEL) in tasks]

    def _remove(self, tasks: Collection[str]) -> None:
        for container in self.containers(tasks):
            self.engine.kill(container.id)
            self.engine.remove(container.id)
