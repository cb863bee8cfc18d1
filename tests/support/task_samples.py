"""A task, its answer, and machines that answer without a network, for tests of what travels to workers."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvllm.bless.blessing import Compiled
from nvllm.cache.manifest import ColdStart, PhaseTime, TrialRecord
from nvllm.core.plan import CACHE
from nvllm.core.progress import Silent
from nvllm.fleet import tasks
from nvllm.fleet.machines import ClusterNode, NotCarriedError
from nvllm.fleet.tasks import (
    BootAnswer,
    BootTask,
    ProofTask,
    ServedProfile,
    SetImage,
    StatusAnswer,
    StatusTask,
    TrialAnswer,
    TrialTask,
)
from nvllm.patches.proved import Arm, ProofRecord
from nvllm.trials.trial import BisectProbe
from support.blessings_world import TREE

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


COMPILED = Compiled(TREE, (1, 2), ColdStart((PhaseTime("server", 9.0),), 80.0, 0, 1, 0), None)
"""What a bootstrap made that nobody ran."""
SERVED = ServedProfile("demo", "eager", "b" * 64, "127.0.0.1:5000/nvllm", f"sha256:{'c' * 64}", HOST, "e" * 64)
BOOT = BootTask("1" * 32, 1, 2, SERVED, f"sha256:{'f' * 64}", COMPILED)
PROOF = ProofTask(
    task="4" * 32,
    attempt=1,
    image="demo",
    profile="eager",
    patch="guard",
    nodes=("tests/test_it.py::test_it[0.28.0]",),
    without=SetImage((), "a" * 64, f"sha256:{'b' * 64}"),
    whole=SetImage(("guard",), "c" * 64, f"sha256:{'d' * 64}"),
    repository="127.0.0.1:5000/nvllm",
    tests=f"sha256:{'e' * 64}",
    size=10240,
    host=HOST,
)
RECORD = ProofRecord(
    "guard",
    PROOF.nodes[0],
    "proved",
    Arm(f"sha256:{'1' * 64}", "failed", "AssertionError: it"),
    Arm(f"sha256:{'2' * 64}", "passed"),
    "3" * 64,
    "4" * 64,
    HOST,
    "2026-11-25T00:00:00Z",
)
LOG = (
    f"2026-11-22T10:00:00.0Z INFO Directly load AOT compilation from path {CACHE}/a/model\n"
    "2026-11-22T10:00:01.0Z INFO GPU KV cache size: 52,428 tokens, Maximum\n"
).encode()


def good_record(number: int, log: bytes = LOG) -> TrialRecord:
    """Return the record of the good trial NUMBER, whose engine wrote LOG, in a container of its own."""
    boot = hashlib.sha256(f"boot {number}".encode()).hexdigest()
    return TrialRecord(
        number, boot, True, True, True, False, True, 2, 12, 0, 52428, 1 << 30, 20.0,
        (PhaseTime("server", 8.0),), hashlib.sha256(log).hexdigest(),
    )  # fmt: skip


def booted(task: BootTask, log: bytes = LOG, host: str = HOST) -> BootAnswer:
    """Return the answer that the boot of TASK was good on HOST, and its engine wrote LOG."""
    record = good_record(task.number, log)
    return BootAnswer(task.task, host, task.served.serve_hash, record, base64.b64encode(log).decode())


def answered(task: TrialTask, content: bytes = b"said", host: str = HOST) -> TrialAnswer:
    """Return the answer that TASK is bad on HOST, with CONTENT as its evidence."""
    evidence = hashlib.sha256(content).hexdigest()
    return TrialAnswer(
        task.task, host, "bad", "exit 3", None, evidence, 1.5, "said", base64.b64encode(content).decode()
    )


class Noting:
    """All that machines ask of a bench between a build and the next one."""

    progress = Silent()


@dataclass
class PlayedMachines:
    """A `Carrier`: MACHINES that ANSWER. A machine that is not alive carries nothing."""

    listed: list[ClusterNode]
    answer: Callable[[ClusterNode, Any], bytes]
    classes: dict[str, str] = field(default_factory=dict)
    """What a machine says of itself, where that is not its label."""
    dead: set[str] = field(default_factory=set)
    carried: list[tuple[str, Any]] = field(default_factory=list)
    cancelled: int = 0

    def greet(self) -> None:
        """All of them take tasks."""

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
