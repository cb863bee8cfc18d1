"""A start: from a launch plan to an engine that gave one real generation, and its end.

Who starts, and what becomes of a ready engine, is the caller's: `supervisor.py` supervises it, `bless/blessing.py`
tries it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Sequence

from nvllm.cache.tree import Tree
from nvllm.core.lock import LockedModel
from nvllm.core.plan import LaunchPlan
from nvllm.core.plan import encode as plan_encode
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.host.facts import INSTANCE_LABEL, TREE_LABEL, ContainerState
from nvllm.host.locks import HeldLocks
from nvllm.image.engine import Engine
from nvllm.serve import health, planner, timeline
from nvllm.serve.rundir import InstanceState, RunDirectory, Stage
from nvllm.serve.timeline import Timeline

_STOP_PATIENCE = 10
_POLL = 0.2
_LAST_WORDS = 2.0
"""Seconds to wait for the end of the log of a container that ended."""

_STAMP = re.compile(rb"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ")
_TAIL = 12
"""Lines of the engine's log that a failed start shows."""


def labels(plan: LaunchPlan) -> dict[str, str]:
    """Return the labels by which the container of PLAN is known as ours."""
    return {
        INSTANCE_LABEL: plan.instance,
        "nvllm.image": plan.image,
        "nvllm.profile": plan.profile,
        "nvllm.build-hash": plan.build_hash,
        "nvllm.serve-hash": plan.serve_hash,
        "nvllm.dev": str(plan.dev).lower(),
        **({TREE_LABEL: plan.cache.tree} if plan.cache is not None else {}),
    }


class EngineStart:
    """One start of PLAN. Make it, `start` it, and `end` it; CACHE is the tree that the plan loads, if it does."""

    def __init__(
        self,
        engine: Engine,
        plan: LaunchPlan,
        models: Sequence[LockedModel],
        run: RunDirectory,
        held_locks: HeldLocks,
        progress: Progress,
        cache: Tree | None = None,
    ) -> None:
        self.engine = engine
        self.plan = plan
        self.models = models
        self.run = run
        self.held_locks = held_locks
        self.progress = progress
        self.cache = cache
        self.label = ""
        """Of the blessing that is in force for it, for `status`."""
        self.container = ""
        self.began = time.time()
        self.ready: float | None = None
        self.timeline = Timeline(self.began)
        self.tail: list[str] = []
        self._under_way = False
        """Whether there is anything to end: the run directory is ours, and nothing has ended yet."""
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, daemon=True)

    def start(self) -> health.Generation:
        """Start the container and wait until it is ready.

        Returns the generation that proved it. Raises Refused with NV701 (the gate refused), NV702 (not ready in
        time), NV703 (it ended) or NV704 (it answers, but not with a generation); the container is gone then.
        """
        expectations = planner.expectations(self.plan, self.models, self.cache)
        self.run.prepare(plan_encode(self.plan), expectations, self.plan.sentinels)
        self._under_way = True
        self._state("starting")
        try:
            self.container = self._create()
            self.held_locks.annotate(self.container)
            self._state("starting")
            self._say("started", container=self.container)
            self._reader.start()
            generation = self._wait()
            self._accept()
            missed = len(self.timeline.missed)
            self._say("ready", tokens=generation.tokens, seconds=generation.seconds, kernels_missed=missed)
            self.ready = time.time()
            self._state("ready")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self.container:
                self.container = self._unnoticed()
            self.fail(error, "failed", _reason(error))
            raise
        return generation

    def end(self, stage: Stage, reason: str) -> None:
        """End the container, if there is one, and say how the instance ended.

        Raises Refused NV510 if the engine does not answer: the container may run on, and its state stays, so that
        `status` and `stop` know of it. Raises Refused NV920 with all that could not be written; it is gone then.
        Of two ends the first counts.
        """
        if not self._under_way:
            return
        if self.container:
            if stage == "stopped":
                self.engine.stop(self.container, _STOP_PATIENCE)
            else:
                self.engine.kill(self.container)
                self.engine.remove(self.container)
        self._under_way = False
        refusals: list[Refusal] = []
        for write in (self._last_words, lambda: self._say(stage, reason=reason), lambda: self._state(stage, reason)):
            try:
                write()
            except Refused as refused:
                refusals.extend(refused.refusals)
        refuse_any(refusals)

    def fail(self, error: BaseException, stage: Stage, reason: str) -> None:
        """End the container because of ERROR, which whoever calls raises again.

        Raises Refused with what ERROR refused, and with all that `end` raises.
        """
        try:
            self.end(stage, reason)
        except Refused as unfinished:
            told = error.refusals if isinstance(error, Refused) else ()
            raise Refused([*told, *unfinished.refusals]) from error

    def scratch(self) -> list[str]:
        """Return the paths of the files that the engine, which is running, has written in the container.

        Raises Refused NV703 if nothing can be run in it any more.
        """
        found = self.engine.scratch_files(self.container, self.plan.command[0])
        if found is None:
            raise Refused([self._died(self.engine.state(self.container))])
        return found

    # A start

    def _create(self) -> str:
        """Create and start the container, and return its id."""
        return self.engine.start(self.plan, labels(self.plan))

    def _accept(self) -> None:
        """Raise Refused if the engine, although it is ready, is not the one that was wanted."""

    def _unnoticed(self) -> str:
        """Return the id of a container that the engine made while we were interrupted, or nothing.

        We hold the lock of its serve hash, so no other supervisor has one with exactly these labels.
        """
        wanted = labels(self.plan).items()
        return next((one.id for one in self.engine.containers() if wanted <= one.labels.items()), "")

    def _wait(self) -> health.Generation:
        deadline = time.monotonic() + self.plan.limits.start_timeout
        with self.progress.task(f"start {self.plan.instance}", None, "files"):
            while True:
                try:
                    self._drain()
                finally:  # why it failed says more than that its log cannot be kept
                    self._judge()
                if any(phase.name == "server" for phase in self.timeline.phases) and health.healthy(self.plan.port):
                    return self._prove(deadline)
                if time.monotonic() > deadline:
                    raise Refused([self._too_late()])
                time.sleep(_POLL)

    def _judge(self) -> None:
        """Raise Refused if the start cannot succeed any more."""
        state = self.engine.state(self.container)
        ended = state is None or state.exit_code is not None
        if ended:
            self._last_words()
        where = f"container {self.plan.instance}"
        refuse_any(
            Refusal(
                "NV701",
                f"{where}: {one['where']}",
                one["expected"],
                one["found"],
                f"nvllm doctor {self.plan.image} --profile {self.plan.profile}",
            )
            for one in self.timeline.gate_findings
        )
        # An engine whose core failed may hang instead of ending: its own words are the end.
        if ended or self.timeline.fatal is not None:
            raise Refused([self._died(state)])

    def _prove(self, deadline: float) -> health.Generation:
        while True:
            try:
                generation = health.generate(self.plan, max(1.0, deadline - time.monotonic()))
            except health.NotReady as error:
                self._drain()
                if error.final or time.monotonic() > deadline:
                    raise Refused([self._not_ready(error.found)]) from error
                self._judge()
                time.sleep(_POLL)
                continue
            self._phase(self.timeline.finish(time.time()))
            return generation

    def _not_ready(self, found: str) -> Refusal:
        where = f"http://127.0.0.1:{self.plan.port}/v1/completions"
        expected = f"{self.plan.probe.max_tokens} generated tokens"
        return Refusal("NV704", where, expected, found, f"read {self.run.log}")

    def _died(self, state: ContainerState | None) -> Refusal:
        if self.run.asked_to_stop:
            found = "it was asked to stop"
        elif state is None:
            found = "the container was removed by somebody else"
        elif state.out_of_memory or state.exit_code == 137:
            found = f"killed (exit status {state.exit_code}), memory limit {self.plan.limits.memory / 2**30:.1f} GiB"
        elif state.exit_code is not None:
            found = f"exit status {state.exit_code}"
        else:
            found = self.timeline.fatal or "it failed"
        shown = "\n".join(self.tail[-_TAIL:])
        return Refusal(
            "NV703",
            f"container {self.plan.instance}",
            "an engine that runs",
            f"{found}; its last lines:\n{shown}",
            f"read {self.run.log}",
        )

    def _too_late(self) -> Refusal:
        seen = ", ".join(f"{phase.name} {phase.seconds:.1f} s" for phase in self.timeline.phases) or "nothing"
        cure = f"read {self.run.log}, or raise limits.start-timeout of the profile"
        expected = f"ready within {self.plan.limits.start_timeout} s"
        return Refusal("NV702", f"container {self.plan.instance}", expected, f"it came as far as: {seen}", cure)

    # What the engine says

    def _read_log(self) -> None:
        rest = b""
        for chunk in self.engine.logs(self.container, follow=True):
            # The engine cuts a long line into pieces, and puts a time in front of each.
            piece = _STAMP.sub(b"", chunk) if rest else chunk
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._lines.put(line)
        if rest:  # last words without an end of line
            self._lines.put(rest)

    def _last_words(self) -> None:
        """Take in what the container wrote before it ended: its lines may come after the news of its end."""
        if not self.container:
            return
        if self._reader.is_alive():
            self._reader.join(_LAST_WORDS)
        self._drain()

    def _drain(self) -> None:
        """Keep what came of the container's log, and take it in: also where it cannot be kept, for it says why."""
        lines = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        try:
            self.run.keep(lines)
        finally:
            for line in lines:
                self._take_in(line)

    def _take_in(self, line: bytes) -> None:
        found = timeline.stamped(line.decode("utf-8", "replace"))
        if found is not None:
            self.tail = [*self.tail[-_TAIL:], found[1]]
            phase = self.timeline.feed(*found)
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
        )
        self.run.write_state(state)


def _reason(error: BaseException) -> str:
    if isinstance(error, Refused):
        return "; ".join(f"{refusal.code} {refusal.title}" for refusal in error.refusals)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
