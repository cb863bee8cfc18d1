"""The machines of a cluster as a bisect uses them: what is pushed and sent, and what is believed of what comes back.

A label says which machines to ask. What a machine says of itself with its result decides: one of another class than its
label is asked no more, and its task is lost.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from nvllm.bisect.driver import PendingTrial
from nvllm.bisect.records import BisectStart, Lost, Sent
from nvllm.core import durable, reading
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refused, refuse
from nvllm.fleet import images, tasks
from nvllm.fleet.registry import Repository
from nvllm.fleet.tasks import MOST_EVIDENCE, Answer, RefusedAnswer, StatusAnswer, StatusTask, TrialAnswer, TrialTask
from nvllm.image.builder import ImageBuilder
from nvllm.trials.bench import EngineBench
from nvllm.trials.ending import MOST_LOSSES
from nvllm.trials.trial import BisectProbe, Built, Trial

T = TypeVar("T")

LOOK = "look at the machines: nvllm fleet status --on ADDRESS"
"""The cure for tasks that are lost."""

_ANOTHER_CLASS = "NV342"
REST = 30.0
"""Seconds: for some of them a cluster still lists a machine that has died, and each task it got would be lost."""

_ASKED_AT_ONCE = 16
"""Machines whose status is asked for at the same time."""

_BETWEEN_LOOKS = 5.0
"""Seconds between two looks for a machine that joined the cluster, while all are busy."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of a cluster: its id there, its NAME for people, and the class that its LABEL says, or nothing.

    STORE is how many bytes the cluster may keep there.
    """

    id: str
    name: str
    label: str
    store: int = 0


class NotCarriedError(Exception):
    """A line came to no answer: its machine died, or the worker there did not start."""


class Carrier(Protocol):
    """Carries lines to `nvllm worker` on other machines, and knows nothing of what they say."""

    def greet(self) -> None:
        """Check that every machine that was named takes tasks. Raises Refused NV923 with those that do not."""

    def machines(self) -> Sequence[ClusterNode]:
        """Return the machines that live."""

    def carry(self, machine: ClusterNode, line: bytes) -> bytes:
        """Return what the worker on MACHINE answers to LINE. Raises NotCarriedError, and Refused NV346."""

    def cancel(self) -> None:
        """End everything that is carried, so that `carry` in other threads raises soon."""


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """A machine, and its answer; or the reason why it has none."""

    node: ClusterNode
    answer: StatusAnswer | str


def status(carrier: Carrier) -> list[MachineStatus]:
    """Return what each machine of CARRIER says of itself, by name."""
    line = tasks.task_line(StatusTask())
    machines = sorted(carrier.machines(), key=_by_name)
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool, cancelled_by_interrupt(carrier.cancel):
        answers = list(pool.map(lambda machine: _status(carrier, machine, line), machines))
    return [MachineStatus(machine, answer) for machine, answer in zip(machines, answers, strict=True)]


@contextlib.contextmanager
def cancelled_by_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Call CANCEL if the context is interrupted: threads that carry lines are waited for, and would not end sooner."""
    try:
        yield
    except KeyboardInterrupt:
        cancel()
        raise


def _by_name(machine: ClusterNode) -> tuple[str, str]:
    return machine.name, machine.id


def _status(carrier: Carrier, machine: ClusterNode, line: bytes) -> StatusAnswer | str:
    try:
        answer = tasks.answer(carrier.carry(machine, line), machine.name)
    except NotCarriedError as error:
        return str(error)
    except Refused as refused:
        return "; ".join(refusal.found for refusal in refused.refusals)
    if isinstance(answer, RefusedAnswer):
        return "; ".join(f"{refusal.code}: {refusal.found}" for refusal in answer.refusals)
    return answer if isinstance(answer, StatusAnswer) else "an answer to another question"


@dataclass
class MachinePool:
    """The machines of CARRIER that are of the class HOST; each carries one line at a time.

    CURE is what to do where there is none. PROGRESS shows whose label is wrong.
    """

    carrier: Carrier
    host: str
    progress: Progress
    cure: str
    _labels: dict[str, str] = field(default_factory=dict)
    """The class of each machine that was asked because it has no label."""
    _wrong: dict[str, str] = field(default_factory=dict)
    """The class of each machine whose label says another."""
    _rests: dict[str, float] = field(default_factory=dict)
    """Until when a machine that lost a task gets no other one."""
    _busy: set[str] = field(default_factory=set)
    _free: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    def fitting(self) -> list[ClusterNode]:
        """Return the machines of the class. Raises Refused NV343 if there is none."""
        machines = sorted(self.carrier.machines(), key=_by_name)
        fitting = [machine for machine in machines if self._class(machine) == self.host]
        if not fitting:
            known = (
                ", ".join(f"{machine.name}: {self._class(machine) or 'unknown'}" for machine in machines)
                or "no machine"
            )
            raise refuse("NV343", "the cluster", f"a machine of class {self.host}", known, self.cure)
        return fitting

    def _class(self, machine: ClusterNode) -> str:
        if machine.id in self._wrong:
            return self._wrong[machine.id]
        if not machine.label and machine.id not in self._labels:
            answer = _status(self.carrier, machine, tasks.task_line(StatusTask()))
            self._labels[machine.id] = answer.host if isinstance(answer, StatusAnswer) else ""
        return machine.label or self._labels[machine.id]

    def awake(self) -> list[ClusterNode]:
        """Return the machines of the class that lost nothing lately."""
        now = time.monotonic()
        return [machine for machine in self.fitting() if self._rests.get(machine.id, now) <= now]

    def ask_any(self, line: bytes, before: Callable[[ClusterNode], None]) -> tuple[ClusterNode, Answer] | str:
        """Have a free machine carry LINE. Return it with its answer, or the reason why there is none.

        BEFORE is told the machine before anything is sent to it. Raises Refused with what the machine refused, and
        where; one of another class tried nothing, so another machine gets the same line.
        """
        while (machine := self._take()) is not None:
            try:
                before(machine)
                answer = self.ask(machine, line)
            except NotCarriedError as error:
                self._rests[machine.id] = time.monotonic() + REST
                return f"{machine.name}: {error}"
            finally:
                self._release(machine)
            if answer is not None:
                return machine, answer
        return "it was not sent: the run ends"

    def ask(self, machine: ClusterNode, line: bytes) -> Answer | None:
        """Return what MACHINE answers to LINE; None if it is of another class, and is asked no more.

        Raises NotCarriedError, and Refused with what the machine refused.
        """
        answer = tasks.answer(self.carrier.carry(machine, line), machine.name)
        if not isinstance(answer, RefusedAnswer):
            return answer
        if {refusal.code for refusal in answer.refusals} != {_ANOTHER_CLASS}:
            raise tasks.refusals(answer, machine.name)
        self._wrong[machine.id] = answer.host
        self.progress.note(f"{machine.name} is of class {answer.host}, and its label is wrong")
        return None

    def _take(self) -> ClusterNode | None:
        """Return a free machine of the class, once there is one; None if `clear` was called meanwhile."""
        with self._free:
            while not self._ended:
                machine = next((machine for machine in self.awake() if machine.id not in self._busy), None)
                if machine is not None:
                    self._busy.add(machine.id)
                    return machine
                self._free.wait(_BETWEEN_LOOKS)
        return None

    def _release(self, machine: ClusterNode) -> None:
        with self._free:
            self._busy.discard(machine.id)
            self._free.notify_all()

    def until_answered(self, what: str, expected: str, attempt: Callable[[int], T | str]) -> T:
        """Return what ATTEMPT, which gets its number, comes to; a text says why that one is lost.

        WHAT is attempted, and EXPECTED is who could end it. Raises Refused NV344 once `MOST_LOSSES` are lost, or the
        first one after `clear`.
        """
        why = ""
        for number in range(1, MOST_LOSSES + 1):
            outcome = attempt(number)
            if not isinstance(outcome, str):
                return outcome
            why = outcome
            if self._ended:
                break
            self.progress.note(f"{what}, attempt {number}: lost: {why}")
        raise refuse("NV344", what, expected, f"tasks lost, the last because: {why}", LOOK)

    def clear(self) -> None:
        """End everything that is carried, and carry nothing more."""
        with self._free:
            self._ended = True
            self._free.notify_all()
        self.carrier.cancel()


def _unnoted(machine: ClusterNode) -> None:
    """The journal of a bisect names no machine."""


@dataclass
class RemoteMachines:
    """Builds here with BENCH, pushes to REPOSITORY, and has CARRIER take each trial of START to a machine of its class.

    At most JOBS of them are used. EVIDENCE is the directory that keeps what came back, by sha256.
    """

    bench: EngineBench
    start: BisectStart
    carrier: Carrier
    repository: Repository
    evidence: Path
    jobs: int
    one_host: ClassVar[bool] = False
    pool: MachinePool = field(init=False)
    _pushed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Manifest and configuration of each build hash that is in the registry."""

    def __post_init__(self) -> None:
        cure = "start the bisect on a host of their class, or add a machine: docs/fleet.md"
        self.pool = MachinePool(self.carrier, self.start.host, self.bench.progress, cure)

    @property
    def count(self) -> int:
        # If all of them rest, one trial waits for the first that may be asked again.
        return min(self.jobs, max(1, len(self.pool.awake())))

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        return self.bench.build(chosen)

    def task(self, built: Built, attempt: int, reason: str) -> PendingTrial:
        """Return trial ATTEMPT of BUILT, for REASON, as a task that is not sent yet; its image is in the registry."""
        if built.build_hash not in self._pushed:
            self._pushed[built.build_hash] = self._push(built)
        manifest, config = self._pushed[built.build_hash]
        sent = Sent(
            uuid.uuid4().hex, built.chosen, built.build_hash, manifest, config, self.start.host, attempt, reason
        )
        return PendingTrial(sent, functools.partial(self.trial, sent))

    def _push(self, built: Built) -> tuple[str, str]:
        """Send the image of BUILT to the registry, and return the digests of its manifest and its configuration."""
        bench = self.bench
        builder = ImageBuilder(bench.project, bench.places, bench.progress, offline=bench.offline)
        pushed = images.push_set(builder, bench.image, built.chosen, self.repository)
        return pushed.manifest, pushed.config

    def trial(self, sent: Sent) -> Trial | Lost:
        answered = self.pool.ask_any(tasks.task_line(self._line(sent)), _unnoted)
        return Lost(sent.task, sent.chosen, answered) if isinstance(answered, str) else self._believed(sent, *answered)

    def _line(self, sent: Sent) -> TrialTask:
        test = self.start.probe
        return TrialTask(
            task=sent.task,
            attempt=sent.attempt,
            image=self.start.image,
            profile=self.start.profile,
            chosen=sent.chosen,
            build_hash=sent.build_hash,
            repository=self.repository.name.typed,
            manifest=sent.manifest,
            host=sent.host,
            test=test,
            program=base64.b64encode(_program(test)).decode(),
        )

    def _believed(self, sent: Sent, machine: ClusterNode, answer: Answer) -> Trial:
        """Return the result in ANSWER, once it is shown to be that of SENT; its evidence is on the disk then."""
        if not isinstance(answer, TrialAnswer) or (answer.task, answer.host) != (sent.task, sent.host):
            answered = f"{answer.task} of {answer.host}" if isinstance(answer, TrialAnswer) else "a status"
            expected = f"the result of {sent.task} of {sent.host}"
            raise refuse("NV345", machine.name, expected, answered, tasks.SAME_VERSION)
        if answer.evidence:
            durable.keep(self.evidence / answer.evidence, answer.bytes, "evidence")
        return answer.trial

    def clear(self) -> None:
        self.pool.clear()


def _program(test: BisectProbe) -> bytes:
    """Return the bytes of the file of TEST: its program, or the answer of ``golden``."""
    names = test.command[1:] if test.command[0].startswith("builtin:") else test.command[:1]
    return reading.required(Path(names[0]), MOST_EVIDENCE, "the probe") if names else b""
