"""Runs tasks of another machine here: its image is pulled by digest, and the same trial is run as for oneself."""

from __future__ import annotations

import base64
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvllm.bless.blessing import Bless
from nvllm.cache.pins import Pins
from nvllm.core import reading
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import refuse, refuse_any
from nvllm.engine.engine import Engine
from nvllm.fleet import candidates, images, testfiles
from nvllm.fleet.registry import Repository
from nvllm.fleet.tasks import (
    MOST_EVIDENCE,
    BootAnswer,
    BootTask,
    ProofAnswer,
    ProofTask,
    ServedProfile,
    TrialAnswer,
    TrialTask,
)
from nvllm.fleet.testfiles import PushedTests
from nvllm.host.facts import TASK_LABEL, HostFacts
from nvllm.host.locks import HeldLocks
from nvllm.image import buildrecord, identity, presence
from nvllm.image.identity import Build
from nvllm.patches import edit, seriesfile
from nvllm.serve.examination import Depth, Examination
from nvllm.serve.fresh import FreshInstances
from nvllm.spec import specfile
from nvllm.trials import probe
from nvllm.trials.bench import EngineBench
from nvllm.trials.proving import Job, ProofBench, Sets
from nvllm.trials.trial import BisectProbe, Built, TrialResult

_CHECK_OUT = "check out the commit of the project that the driver has"


@dataclass(frozen=True, slots=True)
class TaskRunner:
    """Runs tasks on PROJECT with ENGINE. REPOSITORY opens the registry that a task names."""

    project: Project
    places: Places
    engine: Engine
    repository: Callable[[str], Repository]
    progress: Progress

    def pulled(self, named: str, manifest: str, build: Build) -> str:
        """Return the id of the image of BUILD in the engine: the one of MANIFEST in the repository NAMED."""
        built = presence.recorded(build, self.project, self.places, self.engine, build.tags[:1])
        if built is None or manifest not in built.ids:
            repository = self.repository(named)
            tags = build.tags[:1]  # not the second tag, which names the newest build: a trial leaves it alone
            built = images.pull_image(
                repository, manifest, build, self.project, self.places, self.engine, self.progress, tags, "driver"
            ).record
        stored = buildrecord.in_engine(built, self.engine)
        return built.image_id if stored is None else stored.id

    def tried(self, task: TrialTask, build: Build, image: str) -> TrialAnswer:
        """Try IMAGE, which the engine has of BUILD, for TASK, and return the answer with the evidence."""
        with tempfile.TemporaryDirectory(prefix="nvllm-task-") as directory:
            test = _probe(task, Path(directory))
            built = Built(task.chosen, "", build.build_hash, image, 0.0)
            return _trial_answer(task, self._bench(task, test).tried(built))

    def proved(self, task: ProofTask, facts: HostFacts) -> ProofAnswer:
        """Run the tests of TASK, whose images the engine has, on this host of FACTS, and return what they did.

        They run below a directory of their own, with the project here around it.
        """
        spec = specfile.of(self.project, task.image)
        specfile.named_profile(self.project, spec, task.profile)
        series = seriesfile.of(self.project, spec.patches.series)
        label = self.project.show(self.project.series(series.base))
        chosen = Sets(edit.carried(series, task.patch, label), task.without.chosen, task.whole.chosen)
        diffs = seriesfile.diffs_of(self.project, series.base, series.patches)
        bench = self._bench(task, probe.builtin("boots"))  # it judges nothing: the tests do
        with tempfile.TemporaryDirectory(prefix="nvllm-task-", ignore_cleanup_errors=True) as name:
            root = Path(name)
            testfiles.bring(
                PushedTests(task.tests, task.size), root, self.repository(task.repository), self.places, self.progress
            )
            testfiles.beside(self.project.root, root)
            prover = ProofBench(self.project, spec, series, diffs, bench, facts, root)
            (records,) = prover.prove([Job(chosen, task.nodes)])
        return ProofAnswer(task.task, task.host, records)

    def _bench(self, task: TrialTask | ProofTask, test: BisectProbe) -> EngineBench:
        labelled = self.engine.labelling({TASK_LABEL: task.task})
        return EngineBench(
            self.project, self.places, task.image, task.profile, test, labelled, progress=self.progress, task=task.task
        )

    @contextlib.contextmanager
    def examined(self, task: str, served: ServedProfile, build: Build) -> Iterator[tuple[Examination, HeldLocks]]:
        """Examine SERVED, whose BUILD is in the engine, as a fresh instance for TASK, and hold its locks."""
        labelled = self.engine.labelling({TASK_LABEL: task})
        instances = FreshInstances(self.project, self.places, labelled, "bless", "nvllm worker")
        with instances.examined(build, served.profile, Depth.UNBLESSED) as (examination, taken):
            plan = examination.plan
            if plan.serve_hash != served.serve_hash:
                other = f"serve hash {plan.serve_hash}"
                raise refuse("NV332", plan.instance, f"serve hash {served.serve_hash}", other, _CHECK_OUT)
            yield examination, taken

    def booted(self, task: BootTask, examination: Examination, taken: HeldLocks) -> BootAnswer:
        """Bring the candidate of TASK here, boot EXAMINATION on it once, and return the answer with the log.

        What a boot that is not good left stays here, where its refusal says.
        """
        served, tree = task.served, task.compiled.tree
        label, repository = f"{served.image}-{served.profile}", self.repository(served.repository)
        with Pins(self.places.pins).pin() as pin:
            work = Bless(examination, self.places, taken, self.progress, pin)
            candidates.pull_candidate(
                repository, task.candidate, tree, label, work.cure, self.places, self.progress, pin
            )
            booted = work.trial_alone(task.number, task.compiled)
            log = reading.content(work.log(task.number), reading.LOG)
        _check_bound(log, "the log of the engine", "let the engine log less")
        shutil.rmtree(work.evidence.parent)
        content = base64.b64encode(log).decode()
        return BootAnswer(task.task, served.host, examination.plan.serve_hash, booted, content)


def build_of(project: Project, image: str, chosen: tuple[str, ...] | None, build_hash: str) -> Build:
    """Return the build of CHOSEN of IMAGE, or of the set in its spec, by the project here: that of BUILD_HASH."""
    build, stale = identity.load_build(project, image, chosen)
    refuse_any(stale)
    if build.build_hash != build_hash:
        other = f"build hash {build.build_hash[:12]}: another lock, series or spec"
        raise refuse("NV332", project.show(project.lock(image)), build_hash[:12], other, _CHECK_OUT)
    return build


def _trial_answer(task: TrialTask, result: TrialResult) -> TrialAnswer:
    """Return the answer to TASK with RESULT. Raises Refused NV345 for more evidence than may travel."""
    trial, content = result.trial, base64.b64encode(result.written).decode()
    _check_bound(result.written, "the probe", "let the probe print less")
    seconds = round(trial.seconds, 3)
    return TrialAnswer(
        task.task, task.host, trial.outcome, trial.kind, trial.stage, trial.evidence, seconds, trial.said, content
    )


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
        received = probe.builtin(name.removeprefix(probe.BUILTIN), arguments)
    else:
        path.write_bytes(data)
        path.chmod(0o700)
        received = probe.program(path, test.command[1:], test.regress, build_only=test.build_only)
    if received.sha256 != test.sha256:
        raise refuse("NV341", "the probe", test.sha256, received.sha256, "start the bisect again, or correct its probe")
    return received
