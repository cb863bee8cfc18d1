"""Carries a search out: asks what to try next, gives it to machines with a free slot, and writes down what they find.

There is one loop: verdicts are recorded, the search is asked, and what it wants is built here and begun where a slot is
free (`lookahead.to_begin`). Then the driver waits for a result and asks again. This host is a machine with N slots,
`LocalHost`; a cluster (`fleet.machines.RemoteMachines`) has one slot on each of its machines.

A result is recorded before it is used, so that a kill at any point loses only the trials in flight. A trial that leaves
this host is a task: it is in the journal before it is sent, and has one end there, its trial or its loss. A machine
that is lost proves nothing. A driver that is started again ends every task of the one before it as lost, so a result
that nobody waits for counts nowhere.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Protocol

from nvllm.bisect import search
from nvllm.bisect.answer import Done, NextTrial
from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.journal import Log
from nvllm.bisect.lookahead import MOST_MACHINES, Slots, to_begin
from nvllm.bisect.problem import Tally
from nvllm.bisect.records import End, JournalRecord, Judged, Lost, Sent, Tried
from nvllm.bisect.search import propose
from nvllm.bisect.trial_cache import TrialCache
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.trials.ending import MOST_LOSSES, end_all
from nvllm.trials.trial import Built, Trial

_BETWEEN_FORECASTS = 60.0
"""Seconds from one forecast of the time that is left to the next: with hundreds of patches it takes a second or two."""


class Bench(Protocol):
    """Builds sets of patches and tries them on this host. It records nothing."""

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        """Return the image of CHOSEN, or the untestable trial that says why there is none."""

    def trial(self, built: Built) -> Trial:
        """Try BUILT once. Raises Refused NV808 if the probe asks to stop the whole bisect."""

    def clear(self) -> None:
        """Stop everything that runs for a trial, so that trials in other threads end soon."""


@dataclass(frozen=True, slots=True)
class PendingTrial:
    """A trial that is ready to begin. SENT: its record if it leaves this host. RUN tries it, or says why it is lost."""

    sent: Sent | None
    run: Callable[[], Trial | Lost]


class Machines(Protocol):
    """Builds sets of patches here, and tries them in as many slots as its machines have. It records nothing."""

    @property
    def one_host(self) -> bool:
        """Whether all slots are on this host."""

    @property
    def count(self) -> int:
        """How many trials can run now. Raises Refused NV343 if no machine is left."""

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        """Return the image of CHOSEN, or the untestable trial that says why there is none."""

    def task(self, built: Built, attempt: int, reason: str) -> PendingTrial:
        """Return a new task that tries BUILT, whose image each machine can get now."""

    def clear(self) -> None:
        """End every task, so that their `run` in other threads returns soon."""


@dataclass(frozen=True, slots=True)
class LocalHost:
    """This host as a machine with COUNT slots, in which BENCH tries. A trial here ends with the driver: no task."""

    bench: Bench
    count: int = 1
    one_host: ClassVar[bool] = True

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        return self.bench.build(chosen)

    def task(self, built: Built, attempt: int, reason: str) -> PendingTrial:
        return PendingTrial(None, functools.partial(self.bench.trial, built))

    def clear(self) -> None:
        self.bench.clear()


def drive(
    log: Log,
    bench: Bench,
    *,
    cache: TrialCache | None = None,
    budget: float | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Done | NextTrial:
    """Continue the search of LOG on this host with BENCH, JOBS trials at a time; see `dispatch`."""
    return dispatch(log, LocalHost(bench, jobs), cache=cache, budget=budget, progress=progress, clock=clock)


def dispatch(
    log: Log,
    machines: Machines,
    *,
    cache: TrialCache | None = None,
    budget: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Done | NextTrial:
    """Continue the search of LOG on MACHINES. Return what was found.

    If BUDGET, in seconds from now, ends before that, return the trial that comes next.
    Raises Refused NV801 if an end does not behave as declared, NV806 if LOG cannot be written, NV343 if no machine is
    left, NV344 if one trial is lost again and again, and whatever MACHINES raise. LOG is whole in every case, and the
    next call continues where this one stopped.
    """
    deadline = None if budget is None else clock() + budget
    driver = _Driver(log, machines, cache, progress or Silent(), clock)
    return driver.run(lambda: deadline is not None and clock() >= deadline)


class _Driver:
    """The loop, and what it writes to LOG and CACHE and shows by PROGRESS. STATE is what the log adds up to."""

    def __init__(
        self, log: Log, machines: Machines, cache: TrialCache | None, progress: Progress, clock: Callable[[], float]
    ) -> None:
        self.log = log
        self.machines = machines
        self.cache = cache
        self.progress = progress
        self.clock = clock
        self.next_forecast = clock() + _BETWEEN_FORECASTS
        self.state = log.state
        self.problem = self.state.problem
        self.ordered = self.problem.combinations.ordered
        self.known: dict[PatchSet, Tally] = {}
        """The tallies that were judged last."""
        self.running: dict[Future[Trial | Lost], tuple[NextTrial, Sent | None]] = {}
        self.losses: Counter[PatchSet] = Counter()

    def run(self, over: Callable[[], bool]) -> Done | NextTrial:
        """Continue the search until it has ended or OVER returns true; return what `dispatch` does."""
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
        """Return the answer of the search, or the trial that comes next when OVER returns true; POOL runs trials."""
        # The journal does not say when a trial on this host began. So they begin together and are waited for together:
        # that is how `replay_check` finds the point at which the search asked for each.
        until = ALL_COMPLETED if self.machines.one_host else FIRST_COMPLETED
        while True:
            self.record_verdicts()
            answer = propose(self.problem, self.state.evidence)
            late = over()
            if isinstance(answer, Done) or (late and not self.running):
                return answer
            if late or not self.begin(pool):
                self.collect(wait(self.running, return_when=until).done)

    def begin(self, pool: ThreadPoolExecutor) -> bool:
        """Fill the free slots with what the search wants. Return whether it has to be asked again at once."""
        under_way = [asked.chosen for asked, _ in self.running.values()]
        slots = Slots(self.machines.count, self.machines.one_host)
        due = to_begin(self.problem, self.state.evidence, under_way, slots)
        # On one host all images are there before the first trial: a build takes memory from an engine that starts, and
        # one that is refused would end it.
        for group in [due] if slots.one_host else [[asked] for asked in due]:
            new = [asked for asked in group if asked.chosen not in self.state.builds]
            if not all(self.build(asked) for asked in new):
                return True
            # A new image may have the source of a set that was tried, whose trials then count for both.
            if new and not (slots.one_host and propose(self.problem, self.state.evidence) == due[0]):
                return True
            fresh = [asked for asked in group if asked.chosen in under_way or not self.recall(asked)]
            if not fresh:
                return True
            for asked in fresh:
                self.start(asked, None if slots.one_host and len(fresh) == 1 else pool)
        return False

    def build(self, asked: NextTrial) -> bool:
        """Build the set that is ASKED for, and return whether it has an image; if not, that is its trial."""
        built = self.machines.build(self.ordered(asked.chosen))
        if isinstance(built, Trial):
            self.record(asked, built, recalled=False)
        else:
            self.append(built)
        return isinstance(built, Built)

    def start(self, asked: NextTrial, pool: ThreadPoolExecutor | None) -> None:
        """Begin the trial ASKED in POOL; without one in this thread, which receives an interrupt, and wait for it."""
        built = self.state.builds[asked.chosen]
        task = self.machines.task(built, 1 + self.state.losses.get(asked.chosen, 0), asked.reason)
        if task.sent is not None:
            self.append(task.sent)
        future = _ended(task) if pool is None else pool.submit(task.run)
        self.running[future] = asked, task.sent

    def collect(self, ended: set[Future[Trial | Lost]]) -> None:
        """Record what the trials ENDED brought. Raises Refused with the refusals of all of them."""
        refusals: list[Refusal] = []
        for future in [future for future in self.running if future in ended]:
            asked, sent = self.running.pop(future)
            try:
                result = future.result()
            except Refused as refused:
                refusals += refused.refusals
                if sent is not None:
                    self.lose(sent, "it was refused: " + ", ".join(refusal.code for refusal in refused.refusals))
                continue
            if isinstance(result, Trial):
                self.losses[asked.chosen] = 0
                self.record(asked, result, recalled=False, task="" if sent is None else sent.task)
                if self.cache is not None:
                    self.cache.remember(self.state.builds[asked.chosen].build_hash, result)
            elif sent is not None:
                too_many = self.lose(sent, result.why)
                refusals += [] if refusals else too_many
        refuse_any(refusals)

    def lose(self, sent: Sent, why: str) -> list[Refusal]:
        """Record that SENT is lost because of WHY. Return NV344 if its trial was lost too often."""
        self.append(Lost(sent.task, sent.chosen, why))
        self.progress.note(f"task {sent.task[:7]}, attempt {sent.attempt}, is lost: {why}")
        chosen = frozenset(sent.chosen)
        self.losses[chosen] += 1
        if self.losses[chosen] < MOST_LOSSES:
            return []
        cure = "look at the machines: nvllm fleet status --on ADDRESS"
        losses = f"{MOST_LOSSES} tasks lost, the last because: {why}"
        return [Refusal("NV344", ", ".join(sent.chosen) or "no patch", "a machine that ends a trial", losses, cure)]

    def abandon(self) -> None:
        """End all trials that run. Their results are not waited for, so tasks are lost, and an engine that is stopped
        says nothing about its patches."""
        if not self.running:
            return
        end_all(self.running, self.machines.clear)
        for sent in [sent for _, sent in self.running.values() if sent is not None]:
            self.append(Lost(sent.task, sent.chosen, "the driver needed it no more"))
        self.running.clear()

    def append(self, record: JournalRecord) -> None:
        self.log.append(record)
        self.state = self.state.after(record)

    def record_verdicts(self) -> None:
        """Record every verdict that changed, of the sets that have new trials.

        Several may have, because trials run at the same time. All are judged again when the failure turns out flaky.
        """
        evidence = self.state.evidence
        if any(tally.mixed for tally in evidence.tallies.values()) and not any(
            tally.mixed for tally in self.known.values()
        ):
            self.known = {}
        for chosen in self.state.trials:
            counted = evidence.tally(chosen)
            if self.known.get(chosen) == counted and chosen not in (self.problem.low, self.problem.high):
                continue
            self.known[chosen] = counted
            verdict = search.concluded(self.problem, evidence, chosen)
            before = self.state.judged.get(chosen)
            if verdict is None or (
                before is not None and (before.outcome, before.detail) == (verdict.outcome, verdict.detail)
            ):
                continue
            self.append(Judged(self.ordered(chosen), verdict.outcome, verdict.detail, verdict.confidence))

    def recall(self, asked: NextTrial) -> bool:
        """Record the next cached trial of the set that is ASKED for, and return whether there was one."""
        known = self.cache.recall(self.state.builds[asked.chosen].build_hash) if self.cache is not None else ()
        used = len(self.state.trials.get(asked.chosen, ()))
        if used >= len(known):
            return False
        self.record(asked, known[used], recalled=True)
        return True

    def record(self, asked: NextTrial, trial: Trial, *, recalled: bool, task: str = "") -> None:
        """Record TRIAL of the set that was ASKED for, and show it. RECALLED: from the cache. TASK is its, if any."""
        chosen = self.ordered(asked.chosen)
        result = asdict(replace(trial, seconds=round(trial.seconds, 3)))
        self.append(Tried(chosen=chosen, recalled=recalled, reason=asked.reason, task=task, **result))
        detail = trial.kind or trial.stage or ""
        number = len(self.state.sequence)
        names = ", ".join(chosen) or "no patch"
        minutes = None
        if self.clock() >= self.next_forecast:
            minutes, self.next_forecast = self.state.forecast.minutes, self.clock() + _BETWEEN_FORECASTS
        left = f"; about {max(1, round(minutes))} min left" if minutes else ""
        self.progress.note(f"trial {number}: {trial.outcome} {f'({detail}) ' if detail else ''}with {names}{left}")


def _ended(task: PendingTrial) -> Future[Trial | Lost]:
    """Run TASK in this thread, and return its result as a trial in another thread would."""
    future: Future[Trial | Lost] = Future()
    try:
        future.set_result(task.run())
    except Refused as refused:  # an interrupt goes on from here: it ends the search
        future.set_exception(refused)
    return future
