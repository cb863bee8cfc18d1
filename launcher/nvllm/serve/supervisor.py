"""The supervisor of a serve: it starts the engine of an examined plan, and watches it until it ends.

This process holds the locks of the serve hash, the port and the GPUs as long as the container lives. If it is
killed, the kernel frees the locks, and the container that is left is found by its label.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from nvllm.cache import staging
from nvllm.cache.manifest import Coverage
from nvllm.core.paths import Places
from nvllm.core.plan import CONTAINER_PORT, LaunchPlan
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.core.spec import LOOPBACK
from nvllm.host import locks
from nvllm.host.locks import HeldLocks, Key, LocksLost
from nvllm.serve import health, owners
from nvllm.serve.examination import Examination
from nvllm.serve.health import StallDetector
from nvllm.serve.kernel_reports import KernelReports
from nvllm.serve.rundir import CoveredKernels, Death, RunDirectory, Stage
from nvllm.serve.slow_start import SlowPhase
from nvllm.serve.staged_cache import MountedCache
from nvllm.serve.startup import EngineStart
from nvllm.serve.timeline import MissingKernel

PAUSE = 1.0
"""Seconds between two checks of the container; `stopping.RELEASE` leaves room for it."""

RECHECK = 60.0
"""Seconds between two checks that nobody has changed the mounted cache. They read times and sizes, and no file.

SECURITY.md says what an engine may have loaded meanwhile."""


def keys(plan: LaunchPlan) -> list[Key]:
    """Return the keys that a serve of PLAN locks: its serve hash, its port and each of its GPUs."""
    return [Key("serve", plan.serve_hash), port_key(plan), *(Key("gpu", gpu.uuid) for gpu in plan.gpus)]


def port_key(plan: LaunchPlan) -> Key:
    """Return the key of the port that PLAN is published on."""
    return Key("port", str(plan.port))


@contextlib.contextmanager
def hold_locks(examination: Examination, places: Places, command: str) -> Iterator[HeldLocks]:
    """Hold the locks of a serve.

    Raises Refused with all refusals of EXAMINATION, and NV508 for each lock that another process holds.
    """
    holder = locks.this_process(command, examination.plan.instance)
    refusals = list(examination.refusals)
    try:
        held_locks = locks.acquire_all(places.locks, keys(examination.plan), holder)
    except Refused as refused:
        # The refusal of a lock names its holder; that its port and container are there too adds nothing.
        explained = {refusal.code for refusal in refused.refusals}
        if isinstance(refused, LocksLost) and port_key(examination.plan) in refused.keys:
            explained.add("NV507")
        held_elsewhere = _stoppable(refused.refusals, places, examination.plan.instance)
        raise Refused(
            [*(refusal for refusal in refusals if refusal.code not in explained), *held_elsewhere]
        ) from refused
    with held_locks:
        refuse_any(refusals)
        yield held_locks


def _stoppable(refusals: Iterable[Refusal], places: Places, asking: str) -> list[Refusal]:
    """Return REFUSALS of locks with cures that the project of the instance ASKING may use: others' name their own."""
    try:
        statuses = locks.status(places.locks)
    except Refused:  # it is among REFUSALS: the directory takes no locks
        return list(refusals)
    instances = {
        str(places.locks / lock.key.filename): lock.holder.instance for lock in statuses if lock.holder is not None
    }
    return [
        refusal
        if (instance := instances.get(refusal.where)) is None
        else replace(refusal, cure=owners.stop_command(places, instance, asking))
        for refusal in refusals
    ]


class Supervisor(EngineStart):
    """The supervisor of one instance: `start` it, then `watch` it, or do both with `serve`.

    MOUNTED is the staged cache of a blessed profile, None for any other profile. RUN is its run directory, if it is
    another one than the instance's, as for evidence that is kept. DEATHS are the engines that it follows in a service.
    """

    def __init__(
        self,
        examination: Examination,
        places: Places,
        held_locks: HeldLocks,
        progress: Progress,
        mounted: MountedCache | None = None,
        run: RunDirectory | None = None,
        deaths: tuple[Death, ...] = (),
    ) -> None:
        assert examination.engine is not None  # without an engine the examination was refused
        plan = examination.plan if mounted is None else mounted.plan
        run = run or RunDirectory(places.run(plan.instance))
        cache = None if mounted is None else mounted.manifest.tree
        super().__init__(
            examination.engine,
            plan,
            examination.models,
            run,
            held_locks,
            progress,
            cache,
            label="" if mounted is None else mounted.manifest.label,
            coverage=None if mounted is None else _covered(mounted.manifest.coverage),
            memory_floor=examination.profile.campaign.memory_floor,
            deaths=deaths,
        )
        self.mounted = mounted
        self.slow: tuple[SlowPhase, ...] = ()
        """Phases of the start that took much longer than in the trials."""
        self._checked = self._looked = time.monotonic()
        # The watch begins with a new one: until then nobody asks the engine, which is silent while it starts.
        self._stalls = StallDetector(plan.limits.stall_timeout, self._looked)
        self._warned = False
        self._reported: tuple[MissingKernel, ...] = ()
        self.reports = KernelReports(places.kernels)

    def _accept(self) -> None:
        if self.mounted is None:
            return
        processor = self.engine.usage(self.container).processor
        refuse_any(self.mounted.problems(self.timeline, self.scratch(), processor, str(self.run.log)))
        refuse_any(staging.recheck(self.mounted.staged, self.mounted.manifest.cure))
        self.slow = self.mounted.slow(self.timeline)
        for phase in self.slow:
            self._say("slow", phase=phase.phase, seconds=phase.seconds, blessed=phase.blessed)
            self.progress.note(f"SLOW {phase}")

    def serve(self, announce: Callable[[health.Generation], None]) -> None:
        """Start the engine, call ANNOUNCE when it is ready, and `watch` it. Raises what these three raise."""
        with self._ending():
            announce(self.start())
            self._watch()

    def watch(self) -> None:
        """Watch the engine, and return when `nvllm stop` has asked for its end.

        Raises Refused: NV703 if the engine ends by itself, NV907 if the mounted cache was changed, NV913 if its
        requests make no progress or it answers nothing, NV920 if its log or evidence cannot be written. The container
        is removed before any of these is raised. If the Docker engine does not answer (NV510) it may still run;
        `status` shows it.
        """
        with self._ending():
            self._watch()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End the container before an error leaves the context: without this process nobody holds its locks."""
        try:
            yield
        except BaseException as error:
            self.fail(error, *ended_by(error))
            raise

    def _watch(self) -> None:
        patience, self._looked = self.plan.limits.stall_timeout, time.monotonic()
        self._stalls = StallDetector(patience, self._looked)
        seen = health.look(LOOPBACK, self.plan.port, patience)
        if not (seen.metrics or seen.failed):
            self._say("no vitals")
            self.progress.note(f"{self.plan.instance} reports no metrics, so nvllm cannot see whether it hangs")
        while True:
            self.read_log()
            self._report_kernels()
            state = self.engine.state(self.container)
            if self.run.asked_to_stop:  # asked before the state counts: a container that `nvllm stop` ended did not die
                self.end("stopped", "asked to stop")
                return
            if state is None or state.exit_code is not None:
                self._read_rest()
                self._report_kernels()
                raise Refused([self._died(state)])
            self._check_cache()
            self._check_progress()
            time.sleep(PAUSE)

    def _report_kernels(self) -> None:
        """Report what a request needed and the blessed cache lacks: kernels and graphs; `status` shows them."""
        now = () if self.mounted is None else tuple(self.timeline.kernels.values())
        new = [kernel for kernel in now if kernel not in self._reported]
        if not new:
            return
        self._reported = now
        self.reports.add(self.plan.serve_hash, now)
        for kernel in new:
            fields = {"key": kernel.key, "name": kernel.name, "arguments": kernel.arguments}
            self._say("kernel missing", **fields, requests=" ".join(kernel.requests))
            if kernel.arguments:
                self.progress.note(f"COMPILED {kernel.name} ({kernel.arguments}), which the blessed cache lacks")
        self._state("ready")

    def _check_cache(self) -> None:
        if self.mounted is None or time.monotonic() - self._checked < RECHECK:
            return
        self._checked = time.monotonic()
        refuse_any(staging.recheck(self.mounted.staged, self.mounted.manifest.cure))
        try:
            scratch = self.engine.scratch_files(self.container, self.plan.command.interpreter) or []
        except Refused:  # a report that has to wait; whether the container lives is the watch's question
            return
        for graph in self.mounted.new_graphs(scratch):
            self.timeline.note_graph(time.time(), graph)

    def _check_progress(self) -> None:
        """Raise Refused NV913 if the engine answers nothing, or has requests and makes no progress.

        It is reported at half of that time.
        """
        now, patience = time.monotonic(), self.plan.limits.stall_timeout
        if now - self._looked < health.interval(patience):
            return
        self._looked = now
        seen = health.look(LOOPBACK, self.plan.port, patience)
        self._stalls.observe(now, seen)
        if self._stalls.silent >= patience:
            raise Refused([self._silent(seen)])
        stuck = self._stalls.stuck
        if stuck >= patience:
            problem = f"requests are running, but made no progress for {stuck:.0f} s"
            where = health.url(LOOPBACK, self.plan.port, "metrics")
            expected = f"tokens generated within {patience} s while requests run"
            raise refuse("NV913", where, expected, problem, self.run.log_cure)
        seconds, problem = max(
            (stuck, "requests are running, but have made no progress"), (self._stalls.silent, "it has answered nothing")
        )
        if seconds >= patience / 2 and not self._warned:
            self._say("stalling", seconds=seconds, problem=problem)
            self.progress.note(f"STALLING {self.plan.instance}: {problem} for {seconds:.0f} s")
        self._warned = seconds >= patience / 2

    def _silent(self, seen: health.Look) -> Refusal:
        """Return NV913 for an engine whose published port was SEEN not to answer; it says which address still does."""
        plan = self.plan
        state = self.engine.state(self.container)
        own = state.address if state is not None else None
        cure = self.run.log_cure
        if own is None:
            beside = "the container has no address of its own"
        else:
            direct = health.look(own, CONTAINER_PORT, plan.limits.stall_timeout)
            beside = f"the container's own address: {'; '.join(direct.failed)}"
            if not direct.failed:
                beside = (
                    f"the container's own address {own}:{CONTAINER_PORT} answers, so what publishes the port "
                    "(docker-proxy) is dead or full"
                )
                cure = shlex.join(["nvllm", "serve", plan.image, "--profile", plan.profile])
        return Refusal(
            "NV913",
            health.url(LOOPBACK, plan.port, "health"),
            f"an answer on /metrics or /health within {plan.limits.stall_timeout} s",
            f"none for {self._stalls.silent:.0f} s; the published port: {'; '.join(seen.failed)}; {beside}",
            cure,
        )


def _covered(coverage: Coverage | None) -> CoveredKernels | None:
    if coverage is None or not coverage.kernels:
        return None
    return CoveredKernels(len(coverage.kernels), sum(kernel.variants for kernel in coverage.kernels), coverage.unmet)


def ended_by(error: BaseException) -> tuple[Stage, str]:
    """Return the final stage of an instance that ERROR ended, and the reason."""
    if isinstance(error, Refused):
        return "failed", "; ".join(refusal.found for refusal in error.refusals)
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted"
    if isinstance(error, BrokenPipeError):
        return "stopped", "the reader of its output has gone"
    return "failed", type(error).__name__
