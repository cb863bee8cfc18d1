"""Carries a search out on several machines: what is sent is written first, and a machine that is lost proves nothing.

Whenever a trial ends, the search is asked again and the free machines get what it wants. A task is in the journal
before it is sent, and has one end there: its trial, or its loss. A driver that is started again ends every task of the
one before it as lost, so a result that nobody waits for counts nowhere.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.driver import Recorder
from nvllm.bisect.journal import Log
from nvllm.bisect.lookahead import MOST_MACHINES, to_send
from nvllm.bisect.records import End, Lost, Sent
from nvllm.bisect.search import Done, NextTrial, propose
from nvllm.bisect.trial_cache import TrialCache
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.trials.ending import MOST_LOSSES, end_all
from nvllm.trials.trial import Built, Trial


class Machines(Protocol):
    """Builds sets of patches here, and tries them on machines of one class. It records nothing."""

    @property
    def count(self) -> int:
        """How many machines can try something now. Raises Refused NV343 if none can."""

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        """Return the image of CHOSEN, or the untestable trial that says why there is none."""

    def task(self, built: Built, attempt: int, reason: str) -> Sent:
        """Return a new task that tries BUILT, whose image the machines can now pull."""

    def trial(self, sent: Sent) -> Trial | Lost:
        """Send SENT, and return its verified result when it comes, or why there will be none."""

    def clear(self) -> None:
        """End every task, so that `trial` in other threads returns soon."""


def dispatch(
    log: Log,
    machines: Machines,
    *,
    cache: TrialCache | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Done | NextTrial:
    """Continue the search of LOG on MACHINES. Return what was found, or the next trial if BUDGET, in seconds, ends.

    Raises Refused as `driver.drive` does, NV343 if no machine is left, and NV344 if one trial is lost again and again.
    """
    deadline = None if budget is None else clock() + budget
    return _Dispatcher(log, machines, cache, progress or Silent()).run(
        lambda: deadline is not None and clock() >= deadline
    )


class _Dispatcher(Recorder):
    def __init__(self, log: Log, machines: Machines, cache: TrialCache | None, progress: Progress) -> None:
        super().__init__(log, cache, progress)
        self.machines = machines
        self.running: dict[Future[Trial | Lost], tuple[NextTrial, Built, Sent]] = {}
        self.losses: Counter[PatchSet] = Counter()

    def run(self, over: Callable[[], bool]) -> Done | NextTrial:
        for sent in tuple(self.state.sent.values()):
            self.append(Lost(sent.task, sent.chosen, "the driver that sent it ended"))
        with ThreadPoolExecutor(MOST_MACHINES) as pool:
            try:
                answer = self.search(pool, over)
            finally:
                self.abandon()
        if isinstance(answer, Done) and self.state.end is None and not answer.stopped:
            self.append(End(answer.culprits, answer.exact, answer.certified))
        return answer

    def search(self, pool: ThreadPoolExecutor, over: Callable[[], bool]) -> Done | NextTrial:
        while True:
            self.record_verdicts()
            answer = propose(self.problem, self.state.evidence)
            if isinstance(answer, Done) or (over() and not self.running):
                return answer
            if not over() and self.send(pool):
                continue
            self.collect(wait(self.running, return_when=FIRST_COMPLETED).done)

    def send(self, pool: ThreadPoolExecutor) -> bool:
        """Send what the search wants to free machines. Return whether it has to be asked again at once."""
        under_way = [one.chosen for one, _, _ in self.running.values()]
        for one in to_send(self.problem, self.state.evidence, under_way, self.machines.count):
            built = self.state.builds.get(one.chosen)
            if built is None:  # its source may be that of a set that was tried
                made = self.machines.build(self.ordered(one.chosen))
                if isinstance(made, Trial):
                    self.record(one, made, recalled=False)
                else:
                    self.append(made)
                return True
            if one.chosen not in under_way and self.recall(one, built):
                return True
            sent = self.machines.task(built, 1 + self.state.losses.get(one.chosen, 0), one.reason)
            self.append(sent)
            self.running[pool.submit(self.machines.trial, sent)] = (one, built, sent)
        return False

    def collect(self, ended: set[Future[Trial | Lost]]) -> None:
        """Record what the tasks ENDED brought. Raises Refused with the refusals of all of them."""
        refusals: list[Refusal] = []
        for future in ended:
            one, built, sent = self.running.pop(future)
            try:
                result = future.result()
            except Refused as refused:
                refusals += refused.refusals
                result = Lost(sent.task, sent.chosen, "it was refused: " + ", ".join(r.code for r in refused.refusals))
            if isinstance(result, Trial):
                self.losses[one.chosen] = 0
                self.remember(one, built, result, sent.task)
                continue
            self.append(result)
            self.progress.note(f"task {sent.task[:7]}, attempt {sent.attempt}, is lost: {result.why}")
            self.losses[one.chosen] += 1
            if self.losses[one.chosen] >= MOST_LOSSES and not refusals:
                expected, cure = (
                    "a machine that ends a trial",
                    "look at the machines: nvllm fleet status --on ray://HOST",
                )
                found = f"{MOST_LOSSES} tasks lost, the last because: {result.why}"
                refusals += refuse("NV344", ", ".join(sent.chosen) or "no patch", expected, found, cure).refusals
        refuse_any(refusals)

    def abandon(self) -> None:
        """End all tasks that run. Their results are not waited for, so they are lost."""
        if not self.running:
            return
        self.machines.clear()
        end_all(self.running, self.machines.clear)
        for _, _, sent in self.running.values():
            self.append(Lost(sent.task, sent.chosen, "the driver needed it no more"))
        self.running.clear()
