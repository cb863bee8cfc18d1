"""The start of an engine: from a launch plan to its first real generation, and its end.

`supervisor.py` watches the engine that is ready; `bless/blessing.py` runs a trial on it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.cache.cachetree import Tree
from nvllm.core.lock import LockedModel
from nvllm.core.plan import LaunchPlan, encode
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, collected, refuse, refuse_any
from nvllm.core.spec import LOOPBACK, MEMORY_FLOOR
from nvllm.engine.engine import Engine
from nvllm.host.facts import INSTANCE_LABEL, RUN_LABEL, TREE_LABEL, ContainerState, MemoryInUse
from nvllm.host.locks import HeldLocks
from nvllm.serve import access, health, memoryseries, planner, timeline
from nvllm.serve.rundir import CoveredKernels, Death, InstanceState, RunDirectory, Stage
from nvllm.serve.timeline import Timeline
from nvllm.serve.watchdog import MemoryWatch

STOP_PATIENCE = 10
"""Seconds from the end of its requests to the kill of an engine: what `docker stop` allows too."""

_KILLED = 137
"""The exit status of a process that SIGKILL ended."""

POLL = 0.2
"""Seconds between two looks at an engine that starts."""

_LAST_WORDS = 2.0
"""Seconds to wait for the rest of the log of a container that has ended. Docker closes the log then; an engine that
does not must not hold up the end."""

_STAMP = re.compile(rb"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ")
_LINE = 1 << 20
"""Bytes of the longest line that is kept as one."""

_TAIL = 12
"""Lines of the engine's log that a failed start shows."""

LAST_LINES = "; its last lines:"
"""What stands between why an engine died and those lines."""


def labels(plan: LaunchPlan, run: Path) -> dict[str, str]:
    """Return the labels that mark the container of PLAN as one of nvllm's, started from the run directory RUN."""
    return {
        INSTANCE_LABEL: plan.instance,
        RUN_LABEL: str(run),
        "nvllm.image": plan.image,
        "nvllm.profile": plan.profile,
        "nvllm.build-hash": plan.build_hash,
        "nvllm.serve-hash": plan.serve_hash,
        "nvllm.dev": str(plan.dev).lower(),
        **({TREE_LABEL: plan.cache.tree} if plan.cache is not None else {}),
    }


def answers_without_key(plan: LaunchPlan, run: RunDirectory) -> list[Refusal]:
    """Return NV605 if the engine of PLAN, whose run directory is RUN, needs a key and answers a request without one.

    What asks for the key is a part of vLLM's HTTP server. A setting of vLLM may start another server in its place.
    """
    if plan.access.key_file is None:
        return []
    answer = health.without_key(plan.port)
    if answer == health.REFUSED:
        return []
    where, expected = health.url(LOOPBACK, plan.port, "v1/models"), f"{health.REFUSED} without the API key"
    return [Refusal("NV605", where, expected, answer, run.log_cure)]


@dataclass(eq=False)
class EngineStart:
    """One start of PLAN: `start` it, then `end` it. CACHE is the tree that the plan loads, if any.

    LABEL is that of its blessing, and COVERAGE what it covers, for `status`.
    """

    engine: Engine
    plan: LaunchPlan
    models: Sequence[LockedModel]
    run: RunDirectory
    held_locks: HeldLocks
    progress: Progress
    cache: Tree | None = None
    label: str = ""
    coverage: CoveredKernels | None = None
    memory_floor: int = MEMORY_FLOOR
    """Bytes of MemAvailable below which `running` ends the engine."""
    deaths: tuple[Death, ...] = ()
    """The engines that died before it in the same service; then its log and evidence go on where theirs ended."""

    def __post_init__(self) -> None:
        self.container = ""
        self.began = time.time()
        self.ready: float | None = None
        self.timeline = Timeline(self.began)
        self.tail: list[str] = []
        self._under_way = False
        """Whether the run directory is prepared and the instance has not ended."""
        self._outside = ""
        """How another process has ended the container, if one has."""
        # A thread reads, and this one writes: a log that cannot be written ends the start, and no thread alone.
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # daemon: an engine that never closes its log must not keep this process alive.
        self._reader = threading.Thread(target=self._follow_log, daemon=True)

    def start(self) -> health.Generation:
        """Start the container, wait until the engine is ready, and return its first generation.

        Raises Refused: NV605 (it answers without its key), NV701 (the gate refused), NV702 (not ready in time), NV703
        (the container ended) or NV704 (it answers, but not with a generation). The container is removed before.
        """
        expectations = planner.expectations(self.plan, self.models, self.cache)
        asking = None if self.plan.access.key_file is None else access.program()
        prepare = self.run.prepare_again if self.deaths else self.run.prepare
        prepare(encode(self.plan), expectations, self.plan.sentinels, asking)
        self._under_way = True
        self._state("starting")  # before the container: if nvllm is killed in between, `status` knows of the start
        try:
            self.container = self._create()
            self.held_locks.annotate(self.container)  # whoever meets a lock is told which container it is held for
            self._state("starting")  # again, with the id of its container: `status` and `stop` name it
            self._say("started", container=self.container)
            self._reader.start()
            generation = self._wait()
            refuse_any(answers_without_key(self.plan, self.run))
            self._accept()
            missed = len(self.timeline.missed)
            self._say("ready", tokens=generation.tokens, seconds=generation.seconds, kernels_missed=missed)
            self.ready = time.time()
            self._state("ready")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self.container:
                self.container = self._created_meanwhile()
            self.fail(error, "failed", _reason(error))
            raise
        return generation

    def end(self, stage: Stage, reason: str) -> None:
        """End the container, if there is one, and record the final STAGE and the REASON. A second call does nothing.

        Raises Refused NV510 if the engine does not answer: the container may still run, and its state is kept for
        `status` and `stop`. Raises Refused NV920, after the container is gone, for what could not be written.
        """
        if not self._under_way:
            return
        if self.container:
            if stage == "stopped":
                self.engine.stop(self.container, STOP_PATIENCE + self.plan.limits.drain_timeout)
            else:  # a worker of vLLM obeys one SIGTERM alone, and has had it where its core has failed
                self.engine.kill(self.container)
                self.engine.remove(self.container)
        self._under_way = False
        refusals: list[Refusal] = []
        # The state comes last: whoever reads that an instance has ended finds its whole log and evidence.
        for write in (self._read_rest, lambda: self._say(stage, reason=reason), lambda: self._state(stage, reason)):
            with collected(refusals):
                write()
        refuse_any(refusals)

    def fail(self, error: BaseException, stage: Stage, reason: str) -> None:
        """End the container because of ERROR, which the caller raises again.

        If ending it is refused too, raises Refused with those refusals and the ones of ERROR. A second interrupt means
        that nobody waits for its requests: the container is killed.
        """
        try:
            try:
                self.end(stage, reason)
            except KeyboardInterrupt:
                self.end("failed", reason)
                raise
        except Refused as unfinished:
            first = error.refusals if isinstance(error, Refused) else ()
            raise Refused([*first, *unfinished.refusals]) from error

    @contextlib.contextmanager
    def running(self, reason: str) -> Iterator[health.Generation]:
        """Run the engine for the duration of the context, which ends for REASON, and yield its first generation.

        Its container is gone afterwards in any case. Raises what `start` and `end` raise; NV519 in the place of any of
        it, and of a result, if the watchdog has ended the engine, and NV915 if another process has: what was seen then
        says nothing of the engine.
        """
        with (
            MemoryWatch(self.memory_floor, self._kill).watching() as watch,
            memoryseries.recording(self.run, self._memory_in_use),
        ):
            try:
                yield self.start()
            except BaseException as error:
                self._look_for_others()
                self.fail(error, "failed", type(error).__name__)
                if not isinstance(error, KeyboardInterrupt):
                    self._refuse_a_verdict(watch.below)
                raise
            self._look_for_others()
            cut_short = watch.below is not None or self._outside
            self.end("failed" if cut_short else "stopped", "ended before its time" if cut_short else reason)
            self._refuse_a_verdict(watch.below)

    def _memory_in_use(self) -> MemoryInUse | None:
        """Return what the container uses, None if there is none yet."""
        return self.engine.memory_in_use(self.container) if self.container else None

    def _kill(self) -> bool:
        """Kill the container, and return whether there is one yet."""
        if self.container:
            self.engine.kill(self.container)
        return bool(self.container)

    def _look_for_others(self) -> None:
        """See whether another process has ended the container, before `end` removes it."""
        if self._under_way and self.container:
            with contextlib.suppress(Refused):  # an engine that does not answer has its own refusal
                self._note_others(self.engine.state(self.container))

    def _note_others(self, state: ContainerState | None) -> None:
        """Note it if STATE shows that another process has ended the container, whose own cannot kill the first one.

        `nvllm stop` is the user, who wants no second run.
        """
        if self.run.asked_to_stop:
            return
        if state is None:
            self._outside = "another process removed it"
        elif state.exit_code == _KILLED and not state.out_of_memory:
            self._outside = f"another process killed it: exit status {_KILLED}, and not by its memory limit"

    def _refuse_a_verdict(self, below: int | None) -> None:
        """Raise Refused NV519 if the host had only BELOW bytes of memory, and NV915 if another process interfered."""
        if below is not None:
            raise Refused([self._out_of_memory(below)])
        if self._outside:
            where, expected = f"container {self.plan.instance}", "a container that nobody else ends"
            cure = f"find out who ends containers here, and go on: {self.held_locks.command}"
            raise refuse("NV915", where, expected, f"{self._outside}; what it was asked has no verdict", cure)

    def _out_of_memory(self, available: int) -> Refusal:
        expected = f"at least {self.memory_floor >> 20} MiB of MemAvailable, the profile's campaign.memory-floor"
        ending = f"{available >> 20} MiB, so {self.plan.instance} was ended; what it was asked has no verdict"
        cure = f"stop what uses memory, and go on: {self.held_locks.command}"
        return Refusal("NV519", "/proc/meminfo", expected, ending, cure)

    def scratch(self) -> list[str]:
        """Return the paths of the files that the running engine has written in its container.

        Raises Refused NV703 if no program can be run in the container.
        """
        files = self.engine.scratch_files(self.container, self.plan.command.interpreter)
        if files is None:
            raise Refused([self._died(self.engine.state(self.container))])
        return files

    # A start

    def _create(self) -> str:
        """Create and start the container, and return its id. A bless starts its workbench in its place."""
        return self.engine.start(self.plan, labels(self.plan, self.run.path))

    def _accept(self) -> None:
        """Raise Refused if the engine is ready but did not start as it should have."""

    def _created_meanwhile(self) -> str:
        """Return the id of the container that was created during an interrupt, or an empty text.

        This process holds the lock of the serve hash, so no other one has a container with these labels.
        """
        own_labels = labels(self.plan, self.run.path).items()
        return next(
            (container.id for container in self.engine.containers() if own_labels <= container.labels.items()), ""
        )

    def _wait(self) -> health.Generation:
        deadline = time.monotonic() + self.plan.limits.start_timeout
        with self.progress.task(f"start {self.plan.instance}", None, "files"):
            while True:
                try:
                    self.read_log()
                finally:  # the reason why it failed matters more than a log that cannot be written
                    self._check_failed()
                if any(phase.name == "server" for phase in self.timeline.phases) and health.healthy(self.plan.port):
                    return self._wait_for_generation(deadline)
                if time.monotonic() > deadline:
                    raise Refused([self._too_late()])
                time.sleep(POLL)

    def _check_failed(self) -> None:
        """Raise Refused NV701 or NV703 if the start has failed."""
        state = self.engine.state(self.container)
        ended = state is None or state.exit_code is not None
        if ended:
            self._read_rest()
        where = f"container {self.plan.instance}"
        refuse_any(
            Refusal(
                "NV701",
                f"{where}: {finding['where']}",
                finding["expected"],
                finding["found"],
                f"nvllm doctor {self.plan.image} --profile {self.plan.profile}",
            )
            for finding in self.timeline.gate_findings
        )
        # An engine whose core failed may hang instead of ending, so its log decides. `nvllm stop` may have come before
        # the container, between two engines of a service.
        if ended or self.timeline.fatal is not None or self.run.asked_to_stop:
            raise Refused([self._died(state)])

    def _wait_for_generation(self, deadline: float) -> health.Generation:
        while True:
            try:
                # At least a second: past the deadline the rest is negative, which no socket takes as its timeout.
                generation = health.generate(self.plan, max(1.0, deadline - time.monotonic()))
            except health.NotReady as error:
                self.read_log()
                if error.final or time.monotonic() > deadline:
                    raise Refused([self._not_ready(error.problem)]) from error
                self._check_failed()
                time.sleep(POLL)
                continue
            self._phase(self.timeline.finish(time.time()))
            return generation

    def _not_ready(self, problem: str) -> Refusal:
        where = health.url(LOOPBACK, self.plan.port, health.COMPLETIONS)
        expected = f"{self.plan.probe.max_tokens} generated tokens"
        return Refusal("NV704", where, expected, problem, self.run.log_cure)

    def _died(self, state: ContainerState | None) -> Refusal:
        self._note_others(state)
        if self.run.asked_to_stop:
            cause = "it was asked to stop"
        elif state is None:
            cause = "another process removed the container"
        elif state.out_of_memory or state.exit_code == _KILLED:
            cause = f"killed (exit status {state.exit_code}), memory limit {self.plan.limits.memory / 2**30:.1f} GiB"
        elif state.exit_code is not None:
            cause = f"exit status {state.exit_code}"
        else:
            cause = self.timeline.fatal or "it failed"
        last_lines = "\n".join(self.tail)
        return Refusal(
            "NV703",
            f"container {self.plan.instance}",
            "an engine that runs",
            f"{cause}{LAST_LINES}\n{last_lines}",
            self.run.log_cure,
        )

    def _too_late(self) -> Refusal:
        phases = ", ".join(f"{phase.name} {phase.seconds:.1f} s" for phase in self.timeline.phases) or "nothing"
        where, reached = f"container {self.plan.instance}", f"it got as far as: {phases}"
        expected = f"ready within {self.plan.limits.start_timeout} s, the profile's limits.start-timeout"
        return Refusal("NV702", where, expected, reached, self.run.log_cure)

    # The log of the engine

    def _follow_log(self) -> None:
        for line in whole_lines(self.engine.logs(self.container, follow=True)):
            self._lines.put(line)

    def _read_rest(self) -> None:
        """Read what the container wrote before it ended; it may arrive after its end is known."""
        if not self.container:
            return
        if self._reader.is_alive():
            self._reader.join(_LAST_WORDS)
        self.read_log()

    def read_log(self) -> None:
        """Write the new lines of the container's log to its file, and parse them, also if they cannot be written."""
        lines = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        try:
            self.run.keep(lines)
        finally:
            for line in lines:
                self._parse(line)

    def _parse(self, line: bytes) -> None:
        stamped = timeline.stamped(line.decode("utf-8", "replace"))
        if stamped is not None:
            self.tail = timeline.without_evidence([*self.tail, stamped[1]])[-_TAIL:]
            phase = self.timeline.feed(*stamped)
            if phase is not None:
                self._phase(phase)

    def _phase(self, phase: timeline.Phase) -> None:
        self._say("phase", name=phase.name, seconds=phase.seconds, ended=phase.ended)
        self.progress.note(f"{phase.ended:7.1f} s  {phase.name} ({phase.seconds:.1f} s)")

    def _say(self, event: str, **details: str | float) -> None:
        self.run.say(time.time(), event, {"instance": self.plan.instance, "dev": self.plan.dev, **details})

    def _state(self, stage: Stage, reason: str = "") -> None:
        plan = self.plan
        state = InstanceState(
            instance=plan.instance,
            image=plan.image,
            profile=plan.profile,
            dev=plan.dev,
            blessed=self.label,
            coverage=self.coverage,
            stage=stage,
            build_hash=plan.build_hash,
            serve_hash=plan.serve_hash,
            port=plan.port,
            supervisor=os.getpid(),
            container=self.container,
            started=self.began,
            kv_tokens=self.timeline.kv_tokens,
            phases=tuple((phase.name, phase.seconds) for phase in self.timeline.phases),
            ready=self.ready,
            reason=reason,
            kernels=tuple(self.timeline.kernels.values()) if self.cache is not None else (),
            drain=plan.limits.drain_timeout,
            deaths=self.deaths,
        )
        self.run.write_state(state)


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of CHUNKS, a container's log as Docker sends it; also a last line without a line feed.

    A line of more than `_LINE` bytes is yielded in parts: an engine must not fill the memory of its supervisor.
    """
    rest = bytearray()
    for chunk in chunks:
        # Docker cuts a long line into pieces, and puts a time before each of them.
        first, *others = (_STAMP.sub(b"", chunk) if rest else chunk).split(b"\n")
        rest += first
        for line in others:
            yield bytes(rest)
            rest = bytearray(line)
        if len(rest) > _LINE:
            yield bytes(rest)
            rest.clear()
    if rest:
        yield bytes(rest)


def _reason(error: BaseException) -> str:
    if isinstance(error, Refused):
        return "; ".join(f"{refusal.code} {refusal.title}" for refusal in error.refusals)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
