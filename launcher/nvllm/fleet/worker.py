"""The worker: carries out tasks of another machine on this one, by what this machine says of itself.

The task names a class of hosts; the worker computes its own. It pulls the image by digest, takes the locks that any
other trial takes, and runs the same trial (`task_runner.py`). What runs is noted before it starts (`leftovers.py`).
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refused, refuse, refuse_any
from nvllm.engine.engine import Engine
from nvllm.fleet import raylet, tasks
from nvllm.fleet.leftovers import Leftovers
from nvllm.fleet.registry import Repository
from nvllm.fleet.task_runner import TaskRunner, build_of
from nvllm.fleet.tasks import (
    Answer,
    BootTask,
    ProofTask,
    ReadyAnswer,
    ReadyTask,
    StatusAnswer,
    StatusTask,
    Task,
    TrialTask,
)
from nvllm.host import engines, locks, survey
from nvllm.host.facts import EngineProblem, HostFacts
from nvllm.host.locks import HeldLocks, Key
from nvllm.serve import hostclass

PREDECESSOR = 120.0
"""Seconds to wait for another worker of this host to end. Ray keeps the tasks of a driver that is gone for 30 s."""


@dataclass
class Worker:
    """Carries out tasks on PROJECT, with the engine that CONNECT finds. REPOSITORY opens the registry of a task.

    From its first task to its `end` it is the only worker of this host.
    """

    project: Project
    places: Places
    connect: Callable[[], Engine | EngineProblem]
    repository: Callable[[str], Repository]
    progress: Progress
    _held: HeldLocks | None = None

    @property
    def facts(self) -> HostFacts:
        """What this host is now."""
        return survey.host_facts(self.places, self.connect())

    @property
    def host(self) -> str:
        """The class of this host, as it is now."""
        return hostclass.host_class(self.facts)

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine of this host. Raises Refused NV510 if there is none."""
        engine = self.connect()
        if isinstance(engine, EngineProblem):
            raise Refused([engines.unreachable(engine)])
        return engine

    @property
    def leftovers(self) -> Leftovers:
        """What tasks left on this host."""
        return Leftovers(self.places, self.engine)

    def end(self) -> None:
        """End what tasks left, and let another worker begin. A worker that tried nothing has nothing to end."""
        if self._held is not None:
            with self._held:
                self.leftovers.sweep()
            self._held = None

    def answer(self, line: bytes) -> Answer:
        """Return the answer to LINE. What is refused is an answer too."""
        name = ""
        try:
            task = tasks.task(line)
            name = "" if isinstance(task, StatusTask) else task.task
            return self.carry_out(task)
        except Refused as refused:
            return tasks.refused_answer(name, self.host, refused)

    def carry_out(self, task: Task) -> Answer:
        """Return the answer to TASK.

        Raises Refused: NV342 if this host is of another class, NV347 if Ray would end the trial, NV341 for a probe that
        is not the one that is named, NV332 if the project here makes another build of the set or comes to another serve
        hash, NV401 to NV403 for a model that is not here as locked, NV907 for a candidate that is not the tree of its
        task, NV912 for a boot that is not good, NV608 for a proof without pytest, and what a pull or a start raises.
        """
        if isinstance(task, StatusTask):
            return self.status()
        served = task.served if isinstance(task, (ReadyTask, BootTask)) else task
        self._check_host(served.host)
        builds = [
            (build_of(self.project, served.image, chosen, build_hash), manifest)
            for chosen, build_hash, manifest in _images(task)
        ]
        if self._held is None:  # under the lock: what another worker has left is nobody's
            self._held = worker_lock(self.places)
            self.leftovers.sweep()
        runner = TaskRunner(self.project, self.places, self.engine, self.repository, self.progress)
        with self.leftovers.noted(task.task):
            ids = [runner.pulled(served.repository, manifest, build) for build, manifest in builds]
            if isinstance(task, ProofTask):
                return runner.proved(task, self.facts)
            ((build, _),), (image,) = builds, ids
            if isinstance(task, TrialTask):
                return runner.tried(task, build, image)
            with runner.examined(task.task, task.served, build) as (examination, taken):
                if isinstance(task, ReadyTask):
                    return ReadyAnswer(task.task, served.host, examination.plan.serve_hash)
                return runner.booted(task, examination, taken)

    def _check_host(self, host_class: str) -> None:
        """Raise Refused NV342 if this host is not of HOST_CLASS, and NV347 if its Ray would end the trial."""
        facts = self.facts
        host = hostclass.host_class(facts)
        if host_class != host:
            cure = f"label this machine with its class: ray start --labels nvllm-class={host}"
            raise refuse("NV342", "this host", f"class {host_class}", f"class {host}", cure)
        refuse_any(raylet.against(os.environ, facts.gpus))

    def status(self) -> StatusAnswer:
        """Return what this host is, holds and runs."""
        tags = sorted(tag for image in self.engine.images() for tag in image.tags if tag.startswith("nvllm:"))
        locked = locks.status(self.places.locks)
        runs = any(lock.key.kind == "worker" for lock in locked)
        orphans = [] if runs else self.leftovers.containers(self.leftovers.noted_names())
        facts = self.facts
        return StatusAnswer(
            hostclass.host_class(facts),
            tuple(tags),
            tuple(f"{lock.key.kind} {lock.key.name}" for lock in locked),
            tuple(container.name for container in orphans),
            any(gpu.unified for gpu in facts.gpus),
            raylet.memory_monitor(os.environ),
        )


def _images(
    task: TrialTask | ReadyTask | BootTask | ProofTask,
) -> Sequence[tuple[tuple[str, ...] | None, str, str]]:
    """Return the images that TASK needs: the set of patches of each, None: that of the spec; build hash, manifest."""
    if isinstance(task, ProofTask):
        return [(image.chosen, image.build_hash, image.manifest) for image in (task.without, task.whole)]
    if isinstance(task, TrialTask):
        return [(task.chosen, task.build_hash, task.manifest)]
    return [(None, task.served.build_hash, task.served.manifest)]


def worker_lock(places: Places) -> HeldLocks:
    """Take the lock of this host's worker, and wait for another one that ends. Raises Refused NV508 if none does."""
    holder = locks.this_process("nvllm worker")
    deadline = time.monotonic() + PREDECESSOR
    while True:
        try:
            return locks.acquire_all(places.locks, [Key("worker", "host")], holder)
        except Refused:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)  # `acquire_all` waits for no lock
