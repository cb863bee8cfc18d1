"""The worker: carries out tasks of another machine on this one, by what this machine says of itself.

The task names a class of hosts; the worker computes its own. It pulls the image by digest, takes the locks that any
other trial takes, and runs the same trial. What runs for a task is noted before it starts and labelled with the task:
a worker that was killed leaves containers that the next one on this host finds and removes.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from nvllm.bless.blessing import Bless
from nvllm.cache.pins import Pins
from nvllm.core import clock, paths, proc, reading
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refused, refuse, refuse_any
from nvllm.engine.engine import Engine
from nvllm.fleet import candidates, images, raylet, tasks
from nvllm.fleet.registry import Repository
from nvllm.fleet.tasks import (
    MOST_EVIDENCE,
    Answer,
    BootAnswer,
    BootTask,
    ReadyAnswer,
    ReadyTask,
    ServedProfile,
    StatusAnswer,
    StatusTask,
    Task,
    TrialAnswer,
    TrialTask,
)
from nvllm.host import engines, locks, survey
from nvllm.host.facts import TASK_LABEL, ContainerFact, EngineProblem, HostFacts
from nvllm.host.locks import HeldLocks, Holder, Key
from nvllm.image import identity
from nvllm.image import record as buildrecord
from nvllm.image.identity import Build
from nvllm.serve import hostclass
from nvllm.serve.examination import Depth, Examination
from nvllm.serve.fresh import FreshInstances
from nvllm.trials import bench, probe
from nvllm.trials.bench import EngineBench
from nvllm.trials.trial import BisectProbe, Built, Trial

_CHECK_OUT = "check out the commit of the project that the driver has"

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
    _kept: list[bytes] = field(default_factory=list)
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
        found = self.connect()
        if isinstance(found, EngineProblem):
            raise Refused([engines.unreachable(found)])
        return found

    def end(self) -> None:
        """End what tasks left, and let another worker begin. A worker that tried nothing has nothing to end."""
        if self._held is not None:
            with self._held:
                self.sweep()
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
        task, NV912 for a boot that is not good, and what a pull or a start here raises.
        """
        if isinstance(task, StatusTask):
            return self.status()
        served = task if isinstance(task, TrialTask) else task.served
        self._check_host(served.host)
        build = self._build(served.image, task.chosen if isinstance(task, TrialTask) else None, served.build_hash)
        if self._held is None:
            self._held = held(self.places)
            self.sweep()
        with self._noted(task.task):
            image = self._pulled(served.repository, served.manifest, build)
            if isinstance(task, TrialTask):
                return self._tried(task, build, image)
            with self._examined(task.task, task.served, build) as (found, taken):
                if isinstance(task, ReadyTask):
                    return ReadyAnswer(task.task, served.host, found.plan.serve_hash)
                return self._booted(task, found, taken)

    def _check_host(self, wanted: str) -> None:
        """Raise Refused NV342 if this host is not of the class WANTED, and NV347 if its Ray would end the trial."""
        facts = self.facts
        host = hostclass.host_class(facts)
        if wanted != host:
            cure = f"label this machine with its class: ray start --labels nvllm-class={host}"
            raise refuse("NV342", "this host", f"class {wanted}", f"class {host}", cure)
        refuse_any(raylet.against(os.environ, facts.gpus))

    def _build(self, image: str, chosen: tuple[str, ...] | None, build_hash: str) -> Build:
        """Return the build of CHOSEN of IMAGE, or of the set in its spec, by the project here: that of BUILD_HASH."""
        build, stale = identity.load_build(self.project, image, chosen)
        refuse_any(stale)
        if build.build_hash != build_hash:
            found = f"build hash {build.build_hash[:12]}: another lock, series or spec"
            raise refuse("NV332", self.project.show(self.project.lock(image)), build_hash[:12], found, _CHECK_OUT)
        return build

    def _tried(self, task: TrialTask, build: Build, image: str) -> TrialAnswer:
        with tempfile.TemporaryDirectory(prefix="nvllm-task-") as directory:
            test = _probe(task, Path(directory))
            built = Built(task.chosen, "", build.build_hash, image, 0.0)
            return self._answer(task, task.host, self._bench(task, test).trial(built))

    # A boot for a bless

    @contextlib.contextmanager
    def _examined(self, task: str, served: ServedProfile, build: Build) -> Iterator[tuple[Examination, HeldLocks]]:
        """Examine SERVED, whose BUILD is in the engine, as a fresh instance for TASK, and hold its locks."""
        labelled = self.engine.labelling({TASK_LABEL: task})
        instances = FreshInstances(self.project, self.places, labelled, "bless", "nvllm worker")
        with instances.examined(build, served.profile, Depth.UNBLESSED) as (found, taken):
            if found.plan.serve_hash != served.serve_hash:
                said = f"serve hash {found.plan.serve_hash}"
                raise refuse("NV332", found.plan.instance, f"serve hash {served.serve_hash}", said, _CHECK_OUT)
            yield found, taken

    def _booted(self, task: BootTask, found: Examination, taken: HeldLocks) -> BootAnswer:
        """Bring the candidate of TASK here, boot FOUND on it once, and return the answer with the log.

        What a boot that is not good left stays here, where its refusal says.
        """
        served, tree = task.served, task.compiled.tree
        label, repository = f"{served.image}-{served.profile}", self.repository(served.repository)
        with Pins(self.places.pins).held() as pin:
            work = Bless(found, self.places, taken, self.progress, pin)
            candidates.pull_candidate(
                repository, task.candidate, tree, label, work.cure, self.places, self.progress, pin
            )
            record = work.trial_alone(task.number, task.compiled)
            log = reading.content(work.log(task.number), reading.LOG)
        _check_bound(log, "the log of the engine", "let the engine log less")
        shutil.rmtree(work.evidence.parent)
        content = base64.b64encode(log).decode()
        return BootAnswer(task.task, served.host, found.plan.serve_hash, record, content)

    # A trial for a bisect

    def _bench(self, task: TrialTask, test: BisectProbe) -> EngineBench:
        labelled = self.engine.labelling({TASK_LABEL: task.task})
        return EngineBench(
            self.project,
            self.places,
            task.image,
            task.profile,
            test,
            labelled,
            progress=self.progress,
            task=task.task,
            keep=self._keep,
        )

    def _keep(self, evidence: bytes) -> str:
        self._kept[:] = [evidence]
        return bench.hashed(evidence)

    def _pulled(self, named: str, manifest: str, build: Build) -> str:
        """Return the id of the image of BUILD in the engine: the one of MANIFEST in the repository NAMED."""
        held = buildrecord.recorded(build, self.project, self.places, self.engine, build.tags[:1])
        if held is None or manifest not in held.ids:
            repository = self.repository(named)
            tags = build.tags[:1]  # not the second tag, which names the newest build: a trial leaves it alone
            held = images.pull_image(
                repository, manifest, build, self.project, self.places, self.engine, self.progress, tags
            ).record
        found = buildrecord.held(held, self.engine)
        return held.image_id if found is None else found.id

    def _answer(self, task: TrialTask, host: str, trial: Trial) -> TrialAnswer:
        content = b"".join(self._kept) if trial.evidence else b""
        _check_bound(content, "the probe", "let the probe print less")
        shown = replace(trial, seconds=round(trial.seconds, 3))
        return TrialAnswer(
            task.task, host, shown.outcome, shown.kind, shown.stage, shown.evidence, shown.seconds, shown.said,
            base64.b64encode(content).decode(),
        )  # fmt: skip

    # What is left behind

    @property
    def _notes(self) -> Path:
        return self.places.state / "worker"

    @contextlib.contextmanager
    def _noted(self, task: str) -> Iterator[None]:
        """Note TASK while it runs, so that the next worker finds what it leaves if this one is killed."""
        note = paths.ensure(self._notes) / task
        note.touch(0o600)
        try:
            yield
        finally:
            self._kept.clear()
            self.remove(task)
            note.unlink(missing_ok=True)

    def remove(self, *tasks: str) -> int:
        """Remove the containers of TASKS, and return how many there were."""
        left = [one for one in self.engine.containers() if one.labels.get(TASK_LABEL) in tasks]
        for one in left:
            self.engine.kill(one.id)
            self.engine.remove(one.id)
        return len(left)

    def sweep(self) -> int:
        """End everything that tasks on this host left, and return how many containers there were.

        The caller holds the worker's lock, so no task runs.
        """
        for ledger in sorted((self.places.state / "task").glob("*/probes")):
            proc.Programs(ledger).end_left()
        names = self._left()
        removed = self.remove(*names)
        for one in names:
            (self._notes / one).unlink(missing_ok=True)
        return removed

    def _left(self) -> list[str]:
        return [one.name for one in reading.listed(self._notes, "*")] if self._notes.is_dir() else []

    def status(self) -> StatusAnswer:
        """Return what this host is, holds and runs."""
        tags = sorted(tag for one in self.engine.images() for tag in one.tags if tag.startswith("nvllm:"))
        held = tuple(f"{one.key.kind} {one.key.name}" for one in locks.status(self.places.locks))
        names = self._left() if not any(one.startswith("worker ") for one in held) else []
        orphans = [one for one in self.engine.containers() if _is_of(one, names)]
        facts = self.facts
        return StatusAnswer(
            hostclass.host_class(facts), tuple(tags), held, tuple(one.name for one in orphans),
            any(one.unified for one in facts.gpus), raylet.memory_monitor(os.environ),
        )  # fmt: skip


def _is_of(container: ContainerFact, tasks: list[str]) -> bool:
    return container.labels.get(TASK_LABEL) in tasks


def held(places: Places) -> HeldLocks:
    """Take the lock of this host's worker, and wait for another one that ends. Raises Refused NV508 if none does."""
    began = clock.now()
    deadline = time.monotonic() + PREDECESSOR
    while True:
        try:
            return locks.acquire_all(places.locks, [Key("worker", "host")], Holder(os.getpid(), began, "nvllm worker"))
        except Refused:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)


def _check_bound(evidence: bytes, where: str, cure: str) -> None:
    if len(evidence) > MOST_EVIDENCE:
        expected = f"at most {MOST_EVIDENCE} bytes of evidence"
        raise refuse("NV345", where, expected, f"{len(evidence)} bytes", cure)


def _probe(task: TrialTask, directory: Path) -> BisectProbe:
    """Return the probe of TASK, with its program in DIRECTORY. Raises Refused NV341 if it is another one."""
    test, data = task.test, base64.b64decode(task.program)
    name = test.command[0]
    path = directory / "probe"
    if name.startswith(probe.BUILTIN):
        arguments = (str(path),) if test.command[1:] else ()
        if arguments:
            path.write_bytes(data)
        found = probe.builtin(name.removeprefix(probe.BUILTIN), arguments)
    else:
        path.write_bytes(data)
        path.chmod(0o700)
        found = probe.program(path, test.command[1:], test.regress, build_only=test.build_only)
    if found.sha256 != test.sha256:
        raise refuse("NV341", "the probe", test.sha256, found.sha256, "start the bisect again, or correct its probe")
    return found
