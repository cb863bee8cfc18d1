"""A supervisor with an engine that is made up, and a front end that is real.

`FakeEngine` has the methods that a supervisor calls, answers as Docker does, and records what it was asked.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import pytest

from nvllm.core.paths import Places
from nvllm.core.plan import LaunchPlan
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.engine.engine import Engine
from nvllm.host.facts import ContainerFact, ContainerState
from nvllm.host.locks import HeldLocks
from nvllm.serve.examination import Examination
from nvllm.serve.rundir import InstanceState, RunDirectory
from nvllm.serve.supervisor import Supervisor
from support.plansamples import MODEL, PLAN, FrontEnd, build

STARTED = (
    'nvllm.gate {"event": "passed", "seconds": 0.001}',
    "(Worker pid=34) INFO 11-20 23:43:15 [cpu_model_runner.py:131] Starting to load model /models/tiny...",
    "(Worker pid=34) INFO 11-20 23:43:15 [default_loader.py:430] Loading weights took 0.00 seconds",
    "(EngineCore pid=22) INFO 11-20 23:43:15 [kv_cache_utils.py:1869] GPU KV cache size: 52,428 tokens, Maximum",
    "(EngineCore pid=22) INFO [core.py:354] init engine (profile, create kv cache, warmup model) took 0.05 s",
    "(APIServer pid=1) INFO:     Application startup complete.",
)
ID = "4f" * 32
FINDING = {"where": "user", "expected": "1234:1235", "found": "0:0"}


def nothing() -> None:
    pass


def stamped(text: str) -> bytes:
    """Return TEXT as a line of the engine's log."""
    now = time.time_ns()
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
    return f"{seconds}.{now % 10**9:09}Z {text}\n".encode()


@dataclass
class FakeEngine:
    """An engine with at most one container, which is in the STATE that a test says."""

    chunks: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    status: ContainerState | None = None
    asked: list[str] = field(default_factory=list)
    patience: list[int] = field(default_factory=list)
    """Seconds that each stop allowed."""
    labels: Mapping[str, str] = field(default_factory=dict)
    plan: LaunchPlan | None = None
    interrupted: bool = False
    """Whether the user presses Ctrl-C while the container is being started."""
    later: list[Callable[[], None]] = field(default_factory=list)
    """What happens, one by one, whenever the supervisor looks how the container is."""

    def says(self, *lines: str) -> None:
        for line in lines:
            self.chunks.put(stamped(line))

    def ends(self, exit_code: int, *, out_of_memory: bool = False) -> None:
        assert self.status is not None
        self.status = ContainerState(exit_code, out_of_memory)
        self.chunks.put(None)

    def vanishes(self) -> None:
        self.status = None
        self.chunks.put(None)

    # What a supervisor calls

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        self.asked.append("start")
        self.plan, self.labels = plan, labels
        self.status = ContainerState(None, out_of_memory=False)
        if self.interrupted:
            raise KeyboardInterrupt
        return ID

    def containers(self) -> tuple[ContainerFact, ...]:
        if self.status is None or self.plan is None:
            return ()
        return (ContainerFact(self.plan.instance, self.labels, self.status.exit_code is None, ID),)

    def state(self, container_id: str) -> ContainerState | None:
        assert container_id == ID
        if self.later:
            self.later.pop(0)()
        return self.status

    def logs(self, container_id: str, *, follow: bool, tail: int | Literal["all"] = "all") -> Iterator[bytes]:
        assert (container_id, follow, tail) == (ID, True, "all")
        while (chunk := self.chunks.get()) is not None:
            yield chunk

    def stop(self, container_id: str, patience: int) -> None:
        self.asked.append("stop")
        self.patience.append(patience)
        self.vanishes()

    def kill(self, container_id: str) -> None:
        self.asked.append("kill")

    def remove(self, container_id: str) -> None:
        assert container_id == ID
        self.asked.append("remove")
        self.vanishes()


class Noted(Silent):
    """Progress that keeps what it is told, and can be the moment at which the user presses Ctrl-C."""

    def __init__(self, interrupt_at: str = "never") -> None:
        self.notes: list[str] = []
        self.interrupt_at = interrupt_at

    def note(self, text: str) -> None:
        self.notes.append(text)
        if self.interrupt_at in text:
            raise KeyboardInterrupt


@dataclass
class World:
    """A supervisor, and what is around it."""

    supervisor: Supervisor
    engine: FakeEngine
    front: FrontEnd
    run: RunDirectory

    def refused(self) -> Refusal:
        """Start, which must be refused, and return the one refusal."""
        (refusal,) = self.refusals()
        return refusal

    def refusals(self) -> tuple[Refusal, ...]:
        with pytest.raises(Refused) as caught:
            self.supervisor.start()
        return tuple(caught.value.refusals)

    def state(self) -> InstanceState:
        found = self.run.read_state()
        assert found is not None
        return found

    def evidence(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run.path / "evidence.jsonl").read_text().splitlines()]


def examination(of: LaunchPlan, engine: FakeEngine | None, *refusals: Refusal) -> Examination:
    profile = build().spec.profiles["eager"]
    return Examination(profile, of, (MODEL,), (), refusals, cast("Engine | None", engine), build())


def world_of(where: Places, front: FrontEnd, taken: HeldLocks, progress: Progress, **changes: Any) -> World:
    engine = FakeEngine()
    patient = replace(PLAN.limits, start_timeout=30)  # no test waits so long, unless something is wrong
    of = replace(replace(PLAN, port=front.port, limits=patient), **changes)
    found = Supervisor(examination(of, engine), where, taken, progress)
    return World(found, engine, front, RunDirectory(where.runs / of.instance))
