"""Trials on the real engine: builds the image of a set of patches, serves it, probes it and stops it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from nvllm.core import canonical, proc, reading
from nvllm.core.canonical import Json
from nvllm.core.catalogue import Blame
from nvllm.core.paths import Places, Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refused, refuse_any
from nvllm.core.spec import Profile
from nvllm.engine.engine import Engine
from nvllm.host.facts import HostFacts
from nvllm.host.locks import HeldLocks
from nvllm.image import buildrecord, identity, presence
from nvllm.image.builder import ImageBuilder
from nvllm.image.identity import Build
from nvllm.patches import patching, patchset, seriesfile, source
from nvllm.patches.series import Series
from nvllm.serve import fresh, health, supervisor
from nvllm.serve.examination import Depth, Examination
from nvllm.serve.fresh import FreshInstances
from nvllm.serve.rundir import RunDirectory
from nvllm.sources.store import Store
from nvllm.trials import aot_load, probe
from nvllm.trials.artifact import Artifact, LoadingStart, loading
from nvllm.trials.trial import BisectProbe, Built, Trial, TrialResult, TrialStage, evidenced

_STAGE_OF: Mapping[Blame | None, TrialStage] = {
    "patch set": "apply",
    "image": "build",
    "gate": "boot",
    "engine": "boot",
    "compile": "boot",
}
"""The stage of refusals that a set of patches can cause. Any other is the host's fault and stops the bisect."""

_PROBE_TIMEOUT = 3600.0
"""Seconds."""
ENGINE_VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
"""The variables that select the engine. A probe gets them too, because the image is on that engine only."""

_KEPT_LINES, _KEPT_CHARACTERS = 12, 1500
"""How much of what a probe wrote is kept."""

_COMPILED_AGAIN = "compiled again"
"""The kind of a trial whose engine compiled although it loads an artifact."""

_OTHER_PROMPT = "an entirely different question"

TASK_VARIABLE = "NVLLM_TASK"
"""The variable that tells a probe the task it runs for, so that containers of its own can be labelled with it."""


def at_once(count: int, profile: Profile, facts: HostFacts) -> tuple[int, str]:
    """Return how many of COUNT trials of PROFILE may run at the same time on the host of FACTS, and why not all.

    With a GPU it is one, because every plan takes the first GPUs of the host and their locks. Otherwise each engine
    needs the memory that the profile asks for. It is at least one: if the host lacks even that, the trial says so.
    """
    if profile.gpu is not None:
        return 1, "one GPU, one trial" if count > 1 else ""
    available = facts.mem_available
    if available is None or count <= (room := max(1, available // profile.host.memory_available)):
        return count, ""
    return room, f"{available >> 20} MiB are available, and each engine needs {profile.host.memory_available >> 20}"


class ArtifactsInTurn(Protocol):
    """Several compiles of each set, which its trials load in turn."""

    def next(self, chosen: tuple[str, ...], examination: Examination, held_locks: HeldLocks) -> Artifact:
        """Return what the next trial of CHOSEN loads, which the engine of EXAMINATION compiles if it is not there."""


@dataclass
class EngineBench:
    """Builds sets of patches of IMAGE and tries them with the probe TEST, each trial on its own port.

    A worker tries them for the TASK that another machine sent. What the bench starts is named after its PURPOSE.
    Without ARTIFACTS, each engine whose profile compiles does so for itself.
    """

    project: Project
    places: Places
    image: str
    profile: str
    test: BisectProbe
    engine: Engine
    offline: bool = False
    progress: Progress = field(default_factory=Silent)
    task: str = ""
    purpose: Literal["bisect", "proof", "test"] = "bisect"
    artifacts: ArtifactsInTurn | None = None
    command: str = field(init=False)
    """What the holder of its locks is called."""
    programs: proc.Programs = field(init=False)
    """The probes and tests that run here; `clear` ends them."""
    _instances: FreshInstances = field(init=False)

    def __post_init__(self) -> None:
        # A worker and a bisect on one host have containers and programs of their own: neither ends those of the other.
        purpose = "task" if self.task else self.purpose
        words = {
            "task": ["nvllm", "worker"],
            "bisect": ["nvllm", "bisect", "run", "--image", self.image],
            "proof": ["nvllm", "patch", "prove", self.image],
            "test": ["nvllm", "dev", "test"],
        }
        self.command = shlex.join(words[purpose])
        self._instances = FreshInstances(self.project, self.places, self.engine, purpose, self.command)
        # One worker serves a host, whatever the project; a bisect belongs to its project.
        above = self.places.state if self.task else self.places.work(self.project)
        self.programs = proc.Programs(above / purpose / self.image / "probes")

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        """Return the image of CHOSEN; see `driver.Bench`. Raises Refused for what the patches did not cause."""
        began = time.monotonic()
        try:
            return self.built(chosen)
        except Refused as refused:
            return blamed(refused, time.monotonic() - began).trial

    def built(self, chosen: tuple[str, ...]) -> Built:
        """Return the image of CHOSEN. Raises Refused if it cannot be built."""
        began = time.monotonic()
        build, stale = identity.load_build(self.project, self.image, chosen)
        refuse_any(stale)
        image_id = self.ensure_image(build)
        return Built(chosen, self._tree(build), build.build_hash, image_id, round(time.monotonic() - began, 3))

    def serve(self, built: Built, ready: Callable[[str, str], None]) -> None:
        """Serve BUILT until `nvllm stop` or an interrupt, and call READY with the name and address of the instance.

        Another name than that of a trial keeps `clear` from ending it. Raises what `nvllm serve` raises.
        """
        build, stale = identity.load_build(self.project, self.image, built.chosen)
        refuse_any(stale)
        command = shlex.join(["nvllm", "bisect", "serve", "--image", self.image])
        looked_at = FreshInstances(self.project, self.places, self.engine, "look", command)
        with looked_at.examined(self._narrowed(build), self.profile, Depth.UNBLESSED) as (examination, held_locks):
            running = supervisor.Supervisor(examination, self.places, held_locks, self.progress)
            plan = running.plan
            running.serve(lambda _: ready(plan.instance, f"http://127.0.0.1:{plan.port}"))

    def trial(self, built: Built) -> Trial:
        """Try BUILT; see `driver.Bench`."""
        return self.tried(built).trial

    def tried(self, built: Built) -> TrialResult:
        """Serve BUILT and probe it, or probe it unserved. Raises Refused as `driver.Bench.trial` does."""
        began = time.monotonic()
        build, stale = identity.load_build(self.project, self.image, built.chosen)
        refuse_any(stale)
        image = self.ensure_image(build)  # what the journal names may be gone, or may never have been of this build
        environment = {"NVLLM_IMAGE": image, "NVLLM_PATCHES": ",".join(built.chosen)}
        environment |= {TASK_VARIABLE: self.task} if self.task else {}
        if self.test.build_only:
            return run_probe(self.test, environment, Path(os.devnull), began, self.programs)
        name = self.test.command[0]
        boots = name == f"{probe.BUILTIN}boots"
        try:
            if name == f"{probe.BUILTIN}aot-loads":
                with self._examined(build) as (examination, _):
                    return aot_load.trial(self.engine, examination.plan, self.places, began)
            with self._loading(build, built.chosen) as loaded:
                running = loaded.start
                if boots:
                    result = TrialResult(Trial("good", seconds=time.monotonic() - began))
                elif name.startswith(probe.BUILTIN):
                    result = ask(self.test, running.plan, began)
                else:
                    environment["NVLLM_ADDRESS"] = f"http://127.0.0.1:{running.plan.port}"
                    result = run_probe(self.test, environment, running.run.log, began, self.programs)
                return replace(result, trial=self._with_artifact(loaded, result.trial))
        except Refused as refused:
            result = blamed(refused, time.monotonic() - began)
            compiled = all(refusal.blame != "compile" for refusal in refused.refusals)
            if boots and compiled and result.trial.stage == "boot":  # an engine that does not start is the failure
                return replace(result, trial=replace(result.trial, outcome="bad", stage=None))
            return result

    def _with_artifact(self, loaded: LoadingStart, trial: Trial) -> Trial:
        """Return TRIAL of the engine of LOADED, with its run and artifact; untestable if it compiled all the same."""
        start = loaded.start
        trial = replace(trial, run=str(start.run.path))
        if start.cache is None:
            return trial
        scratch = self.engine.scratch_files(start.container, start.plan.command.interpreter)
        # An engine that has ended cannot be looked into: how it ended is the probe's verdict.
        signs = [] if scratch is None else loaded.signs(scratch)
        if signs:
            text = last_lines("\n".join(signs))
            trial = replace(trial, outcome="untestable", kind=_COMPILED_AGAIN, stage="boot", said=text)
        return replace(trial, artifact=start.cache.hash)

    def ensure_image(self, build: Build) -> str:
        """Build the image of BUILD where it is missing, and return the id by which the engine knows it."""
        tags = build.tags[:1]  # not the second tag, which names the newest build: a bisect leaves it alone
        built = presence.recorded(build, self.project, self.places, self.engine, tags)
        if built is None:
            builder = ImageBuilder(self.project, self.places, self.progress, offline=self.offline)
            built = builder.into_engine(build, self.engine, tags)
        image = buildrecord.in_engine(built, self.engine)
        return built.image_id if image is None else image.id

    def _tree(self, build: Build) -> str:
        """Return the hash of the patched source, by which sets that result in the same source are recognised.

        It is empty (unknown) if the source is no longer in the store.
        """
        store, archive = Store(self.places.store), build.lock.vllm.source.sha256
        if not store.has(archive):
            return ""
        diffs = build.diffs(self.project)
        touched = {path for diff in diffs for file in diff.files for path in (file.old, file.new) if path is not None}
        pristine = source.archive(store.path(archive), touched)
        content: Json = {
            path: None if data is None else hashlib.sha256(data).hexdigest()
            for path, data in patching.apply_all(pristine, diffs).items()
            if data != pristine.read(path)
        }
        return canonical.digest("nvllm.patched-tree/1", content)

    def _examined(self, build: Build) -> AbstractContextManager[tuple[Examination, HeldLocks]]:
        """Examine the profile with the sentinels that BUILD reads, as a fresh instance, and hold its locks."""
        return self._instances.examined(self._narrowed(build), self.profile, Depth.UNBLESSED)

    def _narrowed(self, build: Build) -> Build:
        directory = self.project.series(build.spec.patches.series)
        return with_own_sentinels(build, self.profile, seriesfile.load(directory, self.project.show(directory)))

    @contextlib.contextmanager
    def _loading(self, build: Build, chosen: tuple[str, ...]) -> Iterator[LoadingStart]:
        """Serve BUILD, of the set CHOSEN, until the context ends; with an artifact, if ARTIFACTS has one for it."""
        if self.artifacts is None:
            with self._served(build) as running:
                yield LoadingStart(running, None)
            return
        narrowed = self._narrowed(build)
        profile = replace(narrowed.spec.profiles[self.profile], blessed=True)  # so that it is planned to load a cache
        narrowed = fresh.with_profile(narrowed, self.profile, profile)
        with self._instances.examined(narrowed, self.profile, Depth.UNBLESSED) as (examination, held_locks):
            artifact = self.artifacts.next(chosen, examination, held_locks)
            run = RunDirectory(self.places.run(examination.plan.instance))
            with (
                loading(artifact, examination, self.places, held_locks, Silent(), run) as loaded,
                loaded.start.running("the trial is over"),
            ):
                yield loaded

    @contextlib.contextmanager
    def _served(self, build: Build) -> Iterator[supervisor.Supervisor]:
        """Serve BUILD until the context ends."""
        with self._examined(build) as (examination, held_locks):
            running = supervisor.Supervisor(examination, self.places, held_locks, Silent())
            with running.running("the trial is over"):
                yield running

    @contextlib.contextmanager
    def serving(self, built: Built) -> Iterator[supervisor.Supervisor]:
        """Serve BUILT until the context ends. Raises what `nvllm serve` raises."""
        build, stale = identity.load_build(self.project, self.image, built.chosen)
        refuse_any(stale)
        with self._served(build) as running:
            yield running

    def container_name(self) -> str:
        """Return a name for a container beside the engine, which `clear` removes too."""
        return self._instances.name(self.image, self.profile)

    def clear(self) -> None:
        """Stop the probes and remove the containers of all trials of this image, including those of a killed bisect.

        The caller holds the bisect's lock.
        """
        self.programs.end()
        self.programs.end_left()
        self._instances.clear(self.image, self.profile)


def with_own_sentinels(build: Build, name: str, series: Series) -> Build:
    """Return BUILD with only those sentinels in profile NAME that its patch set, chosen from SERIES, reads."""
    profile = build.spec.profiles[name]
    kept = patchset.narrowed(profile.sentinels, series, build.patches)
    return fresh.with_profile(build, name, replace(profile, sentinels=kept))


def blamed(refused: Refused, seconds: float) -> TrialResult:
    """Return the untestable trial of a set that caused REFUSED. Raises REFUSED if the set did not cause all of it."""
    stages = {_STAGE_OF.get(refusal.blame) for refusal in refused.refusals}
    stage = next((stage for stage in ("apply", "build", "boot") if stage in stages), None)
    if None in stages or stage is None:
        raise refused
    kind = " ".join(sorted({refusal.code for refusal in refused.refusals}))
    text = str(refused)
    return evidenced(Trial("untestable", kind, stage, seconds=seconds, said=last_lines(text)), text.encode())


def last_lines(text: str) -> str:
    """Return the last lines of TEXT that a person needs to see why a trial ended as it did."""
    kept = "\n".join(text.strip().splitlines()[-_KEPT_LINES:])
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in kept[-_KEPT_CHARACTERS:])


def _last_lines(written: bytes) -> str:
    return last_lines(written.decode("utf-8", "replace"))


def run_probe(
    test: BisectProbe, environment: Mapping[str, str], log: Path, began: float, programs: proc.Programs
) -> TrialResult:
    """Run the program of TEST with ENVIRONMENT, as one of PROGRAMS, and return its verdict.

    LOG is the engine's log; BEGAN is the monotonic time, in seconds, at which the trial began. Raises Refused NV802 if
    the program cannot be started, and NV808 as `probe.judge` does.
    """
    try:
        done = programs.run(test.command, env=proc.environment(environment, ENGINE_VARIABLES), timeout=_PROBE_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        written = b"".join(output for output in (error.stdout, error.stderr) if output is not None)
        seconds, lines = time.monotonic() - began, _last_lines(written)
        return TrialResult(Trial("untestable", "timeout", "harness", seconds=seconds, said=lines))
    except OSError as error:
        raise Refused([probe.not_runnable(test.command[0], error.strerror or str(error))]) from error
    written = done.stdout + done.stderr
    judged = (written + (reading.content(log, reading.LOG) if log.is_file() else b"")).decode("utf-8", "replace")
    trial = probe.judge(done.returncode, judged, test.regress, seconds=time.monotonic() - began)
    return evidenced(replace(trial, said=_last_lines(written)), written)


def ask(test: BisectProbe, plan: LaunchPlan, began: float) -> TrialResult:
    """Return the trial of the built-in TEST ``coherent`` or ``golden``: greedy answers of the engine of PLAN."""

    def generated(prompt: str) -> str:
        asked = replace(plan, probe=replace(plan.probe, prompt=prompt))
        return health.generate(asked, plan.limits.start_timeout, health.GREEDY).text

    expected: str | None
    try:
        first = generated(plan.probe.prompt)
        if test.command[0] == f"{probe.BUILTIN}golden":
            expected, answer = probe.golden(Path(test.command[1])), first.rstrip("\n")
            kind = "another text"
        else:
            generated(_OTHER_PROMPT)
            expected, answer = first, generated(plan.probe.prompt)
            kind = "another text at the second time"
    except health.NotReady as error:
        expected, answer, kind = None, error.problem, "no generation"
    seconds = time.monotonic() - began
    if expected == answer:
        trial = Trial("good", seconds=seconds, said=last_lines(answer))
    else:
        trial = Trial("bad", kind, seconds=seconds, said=last_lines(f"expected: {expected}\nfound: {answer}"))
    return evidenced(trial, answer.encode())
