"""A task, its answer, and machines that answer without a network, for tests of what travels to workers."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nvllm.bisect.records import BisectProbe
from nvllm.fleet import tasks
from nvllm.fleet.machines import ClusterNode, NotCarriedError
from nvllm.fleet.tasks import StatusAnswer, StatusTask, TrialAnswer, TrialTask

HOST = "cpu-x86_64-0123456789ab"
TASK = TrialTask(
    task="1" * 32,
    attempt=1,
    image="demo",
    profile="eager",
    chosen=("guard",),
    build_hash="b" * 64,
    repository="127.0.0.1:5000/nvllm",
    manifest=f"sha256:{'c' * 64}",
    host=HOST,
    test=BisectProbe(("/probe",), "d" * 64),
    program=base64.b64encode(b"#!/bin/sh\n").decode(),
)


def answered(task: TrialTask, content: bytes = b"said", host: str = HOST) -> TrialAnswer:
    """Return the answer that TASK is bad on HOST, with CONTENT as its evidence."""
    evidence = hashlib.sha256(content).hexdigest()
    return TrialAnswer(
        task.task, host, "bad", "exit 3", None, evidence, 1.5, "said", base64.b64encode(content).decode()
    )


@dataclass
class PlayedMachines:
    """A `Carrier`: MACHINES that ANSWER. A machine that is not alive carries nothing."""

    listed: list[ClusterNode]
    answer: Callable[[ClusterNode, TrialTask], bytes]
    classes: dict[str, str] = field(default_factory=dict)
    """What a machine says of itself, where that is not its label."""
    dead: set[str] = field(default_factory=set)
    carried: list[tuple[str, TrialTask]] = field(default_factory=list)
    cancelled: int = 0

    def machines(self) -> Sequence[ClusterNode]:
        return [one for one in self.listed if one.id not in self.dead]

    def carry(self, machine: ClusterNode, line: bytes) -> bytes:
        if machine.id in self.dead:
            raise NotCarriedError("it died")
        task = tasks.task(line)
        if isinstance(task, StatusTask):
            host = self.classes.get(machine.id, machine.label)
            return tasks.answer_line(StatusAnswer(host, ("nvllm:demo",), (), ()))
        self.carried.append((machine.id, task))
        return self.answer(machine, task)

    def cancel(self) -> None:
        self.cancelled += 1
