"""The trials of a bless on other machines: fresh boots on the cache that was compiled here.

The cache travels by digest. A task is written before it is sent, to ``tasks/`` beside the logs of the bless, and ends
there once: as good, lost or refused. A machine that is lost proves nothing. Nothing of an answer counts before the log
of its engine, which comes with it, shows the same.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from nvllm.bless.blessing import Compiled
from nvllm.cache.manifest import TrialMachine, TrialRecord
from nvllm.core import canonical, durable
from nvllm.core.refusal import Refusal, Refused, collected, refuse, refuse_any
from nvllm.fleet import tasks
from nvllm.fleet.machines import LOOK, ClusterNode, MachinePool, NotCarriedError, cancelled_by_interrupt
from nvllm.fleet.tasks import SAME_VERSION, Answer, BootAnswer, BootTask, ReadyAnswer, ReadyTask, ServedProfile
from nvllm.serve import staged_cache, timeline
from nvllm.trials.ending import end_all


@dataclass(frozen=True, slots=True)
class SentBoot:
    """What is written of a task: the trial NUMBER on a tree, the MACHINE that it was sent to, and its END.

    HOST is the class, ATTEMPT counts the tasks of this trial, and WHY says why it is lost or refused.
    """

    task: str
    number: int
    attempt: int
    serve_hash: str
    tree_hash: str
    candidate: str
    host: str
    machine: str = ""
    end: Literal["", "good", "lost", "refused"] = ""
    why: str = ""


@dataclass
class BootMachines:
    """The machines of POOL, which boot SERVED. DIRECTORY is that of the bless, with the logs of its starts."""

    pool: MachinePool
    served: ServedProfile
    directory: Path
    _boots: set[str] = field(default_factory=set)
    """The containers whose trials count."""
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def boots(self, compiled: Compiled, candidate: str, first: TrialRecord, count: int) -> tuple[TrialRecord, ...]:
        """Return COUNT good trials of what was COMPILED, after the FIRST. CANDIDATE is the digest of its image.

        Raises Refused at the first one that a machine refuses or finds bad (NV912), NV343 if no machine is left, NV344
        if one trial is lost again and again, and NV345 for an answer that does not fit its task.
        """
        self._boots = {first.boot}
        numbers = range(first.number + 1, first.number + 1 + count)
        if not numbers:
            return ()
        with ThreadPoolExecutor(min(count, len(self.pool.fitting()))) as threads:
            running = [threads.submit(self._boot, number, compiled, candidate) for number in numbers]
            try:
                # One bad boot rejects the bless, so the others are ended then.
                ended = wait(running, return_when=FIRST_EXCEPTION).done
            finally:
                for boot in running:
                    boot.cancel()
                end_all(running, self.pool.clear)
        refusals: list[Refusal] = []
        for boot in ended:
            with collected(refusals):
                boot.result()
        refuse_any(refusals)
        return tuple(boot.result() for boot in running)

    def _boot(self, number: int, compiled: Compiled, candidate: str) -> TrialRecord:
        def attempt(count: int) -> TrialRecord | str:
            return self._send(BootTask(uuid.uuid4().hex, count, number, self.served, candidate, compiled))

        return self.pool.until_answered(f"trial {number}", "a machine that ends it", attempt)

    def _send(self, task: BootTask) -> TrialRecord | str:
        """Send TASK, and return its verified record, or why there is none. How it ends is on the disk then."""
        sent = SentBoot(
            task.task, task.number, task.attempt, self.served.serve_hash, task.compiled.tree.hash, task.candidate,
            self.served.host,
        )  # fmt: skip

        def before(machine: ClusterNode) -> None:
            nonlocal sent
            sent = replace(sent, machine=_name(machine))
            self._write(sent)

        try:
            answered = self.pool.ask_any(tasks.task_line(task), before)
            record = answered if isinstance(answered, str) else self._believed(task, *answered)
        except Refused as refused:
            codes = ", ".join(sorted({refusal.code for refusal in refused.refusals}))
            self._write(replace(sent, end="refused", why=codes))
            raise
        if isinstance(record, str):
            self._write(replace(sent, end="lost", why=record))
        else:
            self._write(replace(sent, end="good"))
            good = f"good on {sent.machine}, answers {record.replays}, compiled 0"
            self.pool.progress.note(f"trial {task.number}: {good}")
        return record

    def _write(self, sent: SentBoot) -> None:
        path = self.directory / "tasks" / f"{sent.task}.json"
        durable.keep(path, canonical.pretty(asdict(sent)).encode(), "task")

    def _believed(self, task: BootTask, machine: ClusterNode, answer: Answer) -> TrialRecord:
        """Return the record in ANSWER, once its log shows it to be that of TASK; the log is on the disk then."""
        name = _name(machine)
        if not isinstance(answer, BootAnswer):
            raise refuse("NV345", name, f"the boot of task {task.task}", "an answer to another question", SAME_VERSION)
        record, log = answer.record, answer.bytes
        logged = timeline.of_log(log)
        wrong = [
            (f"{what} {asked}", str(answered))
            for what, asked, answered in (
                ("task", task.task, answer.task),
                ("class", self.served.host, answer.host),
                ("serve hash", self.served.serve_hash, answer.serve_hash),
                ("trial", task.number, record.number),
                ("good:", True, record.good),
                ("KV tokens, as the log says:", logged.kv_tokens, record.kv_tokens),
            )
            if asked != answered
        ]
        wrong += staged_cache.reuse(logged, [], task.compiled.tree)
        with self._guard:
            if record.boot in self._boots:
                wrong.append(("a container that no other trial had", record.boot))
            refuse_any(Refusal("NV345", name, expected, answered, SAME_VERSION) for expected, answered in wrong)
            self._boots.add(record.boot)
        durable.keep(self.directory / f"trial-{task.number}" / "engine.log", log, "evidence")
        # It was asked no evaluation: the first trial is, which runs here.
        return replace(record, machine=TrialMachine(name, answer.host), evaluation=None)


def check_ready(pool: MachinePool, served: ServedProfile) -> list[ClusterNode]:
    """Return the machines of POOL that have all that a boot of SERVED needs; each has pulled its image then.

    Raises Refused with everything that a machine lacks, and where; NV343 if no machine is of the class, and NV345 for
    an answer to another question. One that is lost meanwhile is no machine; NV344 if all are.
    """
    asked = pool.fitting()
    with ThreadPoolExecutor(len(asked)) as threads, cancelled_by_interrupt(pool.clear):
        answers = list(threads.map(lambda machine: _ready(pool, served, machine), asked))
    refuse_any(refusal for answer in answers if isinstance(answer, Refused) for refusal in answer.refusals)
    ready = [machine for machine, answer in zip(asked, answers, strict=True) if answer is True]
    if not ready:
        pool.fitting()  # where every label is wrong, that is the reason
        reasons = "; ".join(f"{machine.name}: {answer}" for machine, answer in zip(asked, answers, strict=True))
        raise refuse("NV344", "the cluster", "a machine that is ready", reasons, LOOK)
    return ready


def _ready(pool: MachinePool, served: ServedProfile, machine: ClusterNode) -> Refused | Literal[True] | str:
    """Return True if MACHINE is ready, what it refuses, or why it did not answer."""
    task = ReadyTask(uuid.uuid4().hex, served)
    try:
        answer = pool.ask(machine, tasks.task_line(task))
    except NotCarriedError as error:
        pool.progress.note(f"{machine.name} is lost: {error}")
        return str(error)
    except Refused as refused:
        return refused
    if answer is None:
        return "of another class"
    if answer != ReadyAnswer(task.task, served.host, served.serve_hash):
        return refuse("NV345", machine.name, f"that it is ready for {task.task}", "another answer", SAME_VERSION)
    return True


def plan_text(machines: Sequence[ClusterNode], boots: int) -> str:
    """Return where BOOTS trials of a bless would run: the first one here, the others on MACHINES as they are free."""
    names = ", ".join(_name(machine) for machine in machines)
    return f"the compile and trial 1 here; trials 2 to {boots} on {names}" if boots > 1 and names else "everything here"


def _name(machine: ClusterNode) -> str:
    return machine.name or machine.id
