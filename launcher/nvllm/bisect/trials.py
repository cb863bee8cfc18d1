"""Trials on the real engine: a set of patches becomes an image, is served, probed and stopped again."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import platform
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nvllm.bisect import aotprobe, probe
from nvllm.bisect.history import Built, Probe, Start
from nvllm.bisect.verdict import Stage, Trial
from nvllm.core import canonical, proc
from nvllm.core.canonical import Json
from nvllm.core.paths import Places, Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.core.spec import Profile
from nvllm.host.facts import INSTANCE_LABEL, HostFacts
from nvllm.host.locks import Holds
from nvllm.image import record as buildrecord
from nvllm.image.builder import ImageBuilder
from nvllm.image.engine import Engine
from nvllm.image.identity import Build
from nvllm.models import tree as models
from nvllm.patches import patching, patchset, seriesfile, source
from nvllm.patches.series import Series
from nvllm.serve import examine, planner, ready, supervisor
from nvllm.serve.examine import Examination, Instance
from nvllm.sources.store import Store

_STAGE_OF: Mapping[str, Stage] = {
    "NV106": "apply",
    "NV301": "apply",
    "NV208": "build",
    "NV306": "build",
    "NV313": "build",
    "NV314": "build",
    "NV701": "boot",
    "NV702": "boot",
    "NV703": "boot",
    "NV704": "boot",
}
"""What a set of patches can be to blame for. Every other refusal is the host's, and stops the bisect."""

_PROBE_TIMEOUT = 3600.0
_ENGINE = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
"""What names the engine to nvllm, and has to name the same one to a probe: the image is there and nowhere else."""

_OTHER_PROMPT = "an entirely different question"
_NAMED = "-bisect-"
"""What the name of a trial's instance has between the profile and its number."""


def inputs(project: Project, image: str) -> str:
    """Return the hash of all that decides the images of a bisect of IMAGE, but for the patch set itself."""
    made, stale = examine.load_build(project, image, [])
    refuse_any(stale)
    series = seriesfile.load(project.series(made.spec.patches.series), made.spec.patches.series)
    patches: Json = [[patch.id, patch.sha256] for patch in series.patches]
    factors = {name: value for name, value in made.factors.items() if name != "patches"}
    return canonical.digest("nvllm.bisect/1", {"factors": factors, "patches": patches})


def host_class(facts: HostFacts) -> str:
    """Return which hosts count as alike: a trial on one is a trial on all of them."""
    names = sorted({f"{gpu.name}-{gpu.driver}" for gpu in facts.gpus})
    return "+".join([platform.machine(), *names]) if names else f"cpu-{platform.machine()}"


def at_once(wanted: int, profile: Profile, facts: HostFacts) -> tuple[int, str]:
    """Return how many of WANTED trials of PROFILE may run at the same time on the host of FACTS, and why no more.

    One GPU, one trial: every plan takes the first GPUs of the host, and their locks. Each engine needs the memory
    that the profile asks of the host. At least one trial runs; what keeps even that from it, the trial itself says.
    """
    if profile.gpu is not None:
        return 1, "one GPU, one trial" if wanted > 1 else ""
    available = facts.mem_available
    if available is None or wanted <= (room := max(1, available // profile.host.memory_available)):
        return wanted, ""
    return room, f"{available >> 20} MiB are available, and each engine needs {profile.host.memory_available >> 20}"


def same_world(start: Start, now: Start, where: str) -> None:
    """Raise Refused NV803, with everything that differs, if NOW is another world than the one START was written in."""
    wrong = [
        (name, before, after)
        for name, before, after in (
            ("lock and series", start.inputs, now.inputs),
            ("probe", start.probe.sha256, now.probe.sha256),
            ("host", start.host, now.host),
        )
        if before != after
    ]
    cure = "nvllm bisect start --discard: the memo keeps every trial that is still worth something"
    refuse_any(Refusal("NV803", f"{where}: {name}", before[:24], after[:24], cure) for name, before, after in wrong)


@dataclass
class EngineBench:
    """Builds sets of patches of IMAGE and tries them by TEST, each trial on a port of its own."""

    project: Project
    places: Places
    image: str
    profile: str
    test: Probe
    engine: Engine
    offline: bool = False
    progress: Progress = field(default_factory=Silent)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _ports: threading.Lock = field(default_factory=threading.Lock)
    _programs: proc.Programs = field(default_factory=proc.Programs)

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        """Return the image of CHOSEN; see `driver.Bench`. Raises Refused for what is no fault of the patches."""
        began = time.monotonic()
        made, stale = examine.load_build(self.project, self.image, chosen)
        refuse_any(stale)
        try:
            image_id = self._image(made)
            tree = self._tree(made)
        except Refused as refused:
            return blamed(refused, time.monotonic() - began)
        return Built(chosen, tree, made.build_hash, image_id, round(time.monotonic() - began, 3))

    def trial(self, built: Built) -> Trial:
        """Serve BUILT and probe it, or probe it unserved; see `driver.Bench`."""
        began = time.monotonic()
        environment = {"NVLLM_IMAGE": built.image, "NVLLM_PATCHES": ",".join(built.chosen)}
        made, stale = examine.load_build(self.project, self.image, built.chosen)
        refuse_any(stale)
        self._image(made)  # the image may have been removed since the journal says that it was built
        if self.test.build_only:
            return run_probe(self.test, environment, Path(os.devnull), began, self._programs)
        name = self.test.command[0]
        boots = name == f"{probe.BUILTIN}boots"
        try:
            if name == f"{probe.BUILTIN}aot-loads":
                with self._held(made) as (examination, _):
                    return aotprobe.trial(self.engine, examination.plan, self.places, began)
            with self._served(made) as running:
                address = f"http://127.0.0.1:{running.plan.port}"
                log = running.run.log
                if boots:
                    return Trial("good", "", None, "", time.monotonic() - began)
                if name.startswith(probe.BUILTIN):
                    return ask(self.test, running.plan, began)
                return run_probe(self.test, {**environment, "NVLLM_ADDRESS": address}, log, began, self._programs)
        except Refused as refused:
            trial = blamed(refused, time.monotonic() - began)
            # Only then is an engine that does not start what the test looks for, and no obstacle to it.
            return replace(trial, outcome="bad", stage=None) if boots and trial.stage == "boot" else trial

    def _image(self, made: Build) -> str:
        """Return the id of the image of MADE that the engine knows it by, for a probe may run it."""
        tags = made.tags[:1]  # the newest build, which the other name stands for, is none of a bisect's
        record = buildrecord.recorded(made, self.places, self.engine, tags)
        if record is None:
            maker = ImageBuilder(self.project, self.places, self.progress, offline=self.offline)
            record = maker.into_engine(made, self.engine, tags)
        held = buildrecord.held(record, self.engine)
        return record.image_id if held is None else held.id

    def _tree(self, made: Build) -> str:
        """Return the hash of what the patches make of the source, so that sets that make the same are one.

        It is empty, which stands for unknown, where the image is there and its source is not any more.
        """
        store, archive = Store(self.places.store), made.lock.vllm.source.sha256
        if not store.has(archive):
            return ""
        directory = self.project.series(made.spec.patches.series)
        found = seriesfile.diffs(directory, made.patches, self.project.show(directory))
        diffs = [found[patch.id] for patch in made.patches]
        wanted = {path for diff in diffs for file in diff.files for path in (file.old, file.new) if path is not None}
        pristine = source.archive(store.path(archive), wanted)
        content: Json = {
            path: None if data is None else hashlib.sha256(data).hexdigest()
            for path, data in patching.apply_all(pristine, diffs).items()
            if data != pristine.read(path)
        }
        return canonical.digest("nvllm.tree/1", content)

    @contextlib.contextmanager
    def _held(self, made: Build) -> Iterator[tuple[Examination, Holds]]:
        """Examine the profile as `serve` does, under a name and on a port of its own, and hold its locks.

        One port is chosen at a time: two trials may start together.
        """
        with contextlib.ExitStack() as stack:
            with self._ports:
                number = f"{os.getpid()}-{next(self._numbers)}"
                name = f"{planner.instance_name(self.image, self.profile)}{_NAMED}{number}"
                instance = Instance(name, self.profile, free_port())
                directory = self.project.series(made.spec.patches.series)
                series = seriesfile.load(directory, self.project.show(directory))
                made = with_own_sentinels(made, self.profile, series)
                memo = models.HashCache.load(self.places.state / "verified.json")
                examination = examine.examine_build(
                    self.project, self.places, made, instance, self.engine, memo, Silent()
                )
                command = shlex.join(["nvllm", "bisect", "run", "--image", self.image])
                taken = stack.enter_context(supervisor.held(examination, self.places, command))
            yield examination, taken

    @contextlib.contextmanager
    def _served(self, made: Build) -> Iterator[supervisor.Supervisor]:
        """Serve MADE until the end of the context."""
        with self._held(made) as (examination, taken):
            running = supervisor.Supervisor(examination, self.places, taken, Silent())
            running.start()
            try:
                yield running
            finally:
                running.end("stopped", "the trial is over")

    def clear(self) -> None:
        """End every trial of this image: its probe, and its container, also one that a killed bisect left.

        Whoever calls holds the bisect's lock.
        """
        self._programs.end()
        ours = f"{planner.instance_name(self.image, self.profile)}{_NAMED}"
        for one in self.engine.containers():
            if one.name.startswith(ours) and one.labels.get(INSTANCE_LABEL) == one.name:
                self.engine.kill(one.id)
                self.engine.remove(one.id)


def with_own_sentinels(made: Build, name: str, series: Series) -> Build:
    """Return MADE, whose profile NAME has those of its sentinels that the set reads.

    It names those of the image's whole set; SERIES is where the set was chosen from.
    """
    profile = made.spec.profiles[name]
    kept = patchset.narrowed(profile.sentinels, series, made.patches)
    profiles = {**made.spec.profiles, name: replace(profile, sentinels=kept)}
    return replace(made, spec=replace(made.spec, profiles=profiles))


def blamed(refused: Refused, seconds: float) -> Trial:
    """Return the untestable trial that REFUSED makes of a set. Raises it again if the set is not to blame."""
    stages = {_STAGE_OF.get(refusal.code) for refusal in refused.refusals}
    stage = next((one for one in ("apply", "build", "boot") if one in stages), None)
    if None in stages or stage is None:
        raise refused
    kind = " ".join(sorted({refusal.code for refusal in refused.refusals}))
    evidence = hashlib.sha256(str(refused).encode()).hexdigest()
    return Trial("untestable", kind, stage, evidence, seconds)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_probe(test: Probe, environment: Mapping[str, str], log: Path, began: float, programs: proc.Programs) -> Trial:
    """Run the program of TEST with ENVIRONMENT, as one of PROGRAMS, and return its verdict.

    LOG is what the engine wrote; BEGAN is when the trial began, by the monotonic clock. Raises Refused NV802 if it
    cannot be started, and NV808 as `probe.judge` does.
    """
    try:
        done = programs.run(test.command, env=proc.environment(environment, _ENGINE), timeout=_PROBE_TIMEOUT)
    except subprocess.TimeoutExpired:
        return Trial("untestable", "timeout", "harness", "", time.monotonic() - began)
    except OSError as error:
        raise Refused([probe.not_runnable(test.command[0], error.strerror or str(error))]) from error
    written = done.stdout + done.stderr + (log.read_bytes() if log.is_file() else b"")
    evidence = hashlib.sha256(done.stdout + done.stderr).hexdigest()
    said = written.decode("utf-8", "replace")
    return probe.judge(done.returncode, said, test.regress, seconds=time.monotonic() - began, evidence=evidence)


def ask(test: Probe, plan: LaunchPlan, began: float) -> Trial:
    """Return the verdict of a test that asks the engine of PLAN, greedily: ``coherent`` or ``golden``."""

    def said(prompt: str) -> str:
        asked = replace(plan, probe=replace(plan.probe, prompt=prompt))
        return ready.generate(asked, plan.limits.start_timeout, ready.GREEDY).text

    try:
        first = said(plan.probe.prompt)
        if test.command[0] == f"{probe.BUILTIN}golden":
            wanted, found = probe.golden(Path(test.command[1])), first.rstrip("\n")
            kind = "another text"
        else:
            said(_OTHER_PROMPT)
            wanted, found = first, said(plan.probe.prompt)
            kind = "another text at the second time"
    except ready.NotReady as error:
        return Trial(
            "bad", "no generation", None, hashlib.sha256(error.found.encode()).hexdigest(), time.monotonic() - began
        )
    evidence = hashlib.sha256(found.encode()).hexdigest()
    if wanted == found:
        return Trial("good", "", None, evidence, time.monotonic() - began)
    return Trial("bad", kind, None, evidence, time.monotonic() - began)
