"""Carries a search out: asks for the next trial, builds its set, tries it, records the result, and asks again.

Simulations and real bisects both use it, with a different bench and log. A result is recorded before it is used, so
that a kill at any point loses only the trial in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from typing import Protocol

from nvllm.bisect import search
from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.forecast import ahead
from nvllm.bisect.journal import Log
from nvllm.bisect.problem import Tally
from nvllm.bisect.records import End, JournalRecord, Judged, Tried
from nvllm.bisect.search import Done, NextTrial, propose
from nvllm.bisect.trial_cache import TrialCache
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.trials.ending import end_all
from nvllm.trials.trial import Built, Trial

_WORTH_A_FORECAST = 10.0
"""Seconds that a trial took, from which on it is said how long the search still takes: that itself takes a second."""


class Bench(Protocol):
    """Builds sets of patches and tries them. It records nothing."""

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        """Return the image of CHOSEN, or the untestable trial that says why there is none."""

    def trial(self, built: Built) -> Trial:
        """Try BUILT once. Raises Refused NV808 if the probe asks to stop the whole bisect."""

    def clear(self) -> None:
        """Stop everything that runs for a trial, so that trials in other threads end soon."""


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
    """Continue the search of LOG with BENCH, JOBS trials at a time. Return what was found.

    If BUDGET, in seconds from now, ends before that, return the trial that comes next.
    Raises Refused NV801 if an end does not behave as declared, NV806 if LOG cannot be written, and whatever BENCH
    raises. LOG is whole in every case, and the next call continues where this one stopped.
    """
    driver = _Driver(log, bench, cache, progress or Silent())
    deadline = None if budget is None else clock() + budget
    while True:
        driver.record_verdicts()
        answer = propose(driver.problem, driver.state.evidence)
        if isinstance(answer, Done):
            if driver.state.end is None and not answer.stopped:
                driver.append(End(answer.culprits, answer.exact, answer.certified))
            return answer
        if deadline is not None and clock() >= deadline:
            return answer
        driver.run(ahead(driver.problem, driver.state.evidence, jobs))


class Recorder:
    """Writes what a search learns to LOG and CACHE, and shows it by PROGRESS. STATE is what the log adds up to."""

    def __init__(self, log: Log, cache: TrialCache | None, progress: Progress) -> None:
        self.log = log
        self.cache = cache
        self.progress = progress
        self.state = log.state
        self.problem = self.state.problem
        self.ordered = self.problem.combinations.ordered
        self.known: dict[PatchSet, Tally] = {}
        """The tallies that were judged last."""

    def append(self, record: JournalRecord) -> None:
        self.log.append(record)
        self.state = self.state.after(record)

    def record_verdicts(self) -> None:
        """Record every verdict that changed, of the sets that have new trials.

        Several may have, because trials run at the same time. All are judged again when the failure turns out flaky.
        """
        evidence = self.state.evidence
        if any(one.mixed for one in evidence.tallies.values()) and not any(one.mixed for one in self.known.values()):
            self.known = {}
        for chosen in self.state.trials:
            counted = evidence.tally(chosen)
            if self.known.get(chosen) == counted and chosen not in (self.problem.low, self.problem.high):
                continue
            self.known[chosen] = counted
            found = search.concluded(self.problem, evidence, chosen)
            before = self.state.judged.get(chosen)
            if found is None or (
                before is not None and (before.outcome, before.detail) == (found.outcome, found.detail)
            ):
                continue
            self.append(Judged(self.ordered(chosen), found.outcome, found.detail, found.confidence))

    def recall(self, one: NextTrial, built: Built) -> bool:
        """Record the next cached trial of BUILT, and return whether there was one."""
        known = self.cache.recall(built.build_hash) if self.cache is not None else ()
        used = len(self.state.trials.get(one.chosen, ()))
        if used >= len(known):
            return False
        self.record(one, known[used], recalled=True)
        return True

    def remember(self, one: NextTrial, built: Built, trial: Trial, task: str = "") -> None:
        """Record the new TRIAL, and cache it. TASK is the one that brought it from another machine."""
        self.record(one, trial, recalled=False, task=task)
        if self.cache is not None:
            self.cache.remember(built.build_hash, trial)

    def record(self, one: NextTrial, trial: Trial, *, recalled: bool, task: str = "") -> None:
        chosen = self.ordered(one.chosen)
        result = asdict(replace(trial, seconds=round(trial.seconds, 3)))
        self.append(Tried(chosen=chosen, recalled=recalled, reason=one.reason, task=task, **result))
        detail = trial.kind or trial.stage or ""
        number = len(self.state.sequence)
        shown = ", ".join(chosen) or "no patch"
        left = self.left() if trial.seconds >= _WORTH_A_FORECAST and not recalled else ""
        self.progress.note(f"trial {number}: {trial.outcome} {f'({detail}) ' if detail else ''}with {shown}{left}")

    def left(self) -> str:
        """Return how long the search still takes, for the end of a line; empty if it is about to end."""
        minutes = self.state.forecast.minutes
        return f"; about {max(1, round(minutes))} min left" if minutes else ""


class _Driver(Recorder):
    def __init__(self, log: Log, bench: Bench, cache: TrialCache | None, progress: Progress) -> None:
        super().__init__(log, cache, progress)
        self.bench = bench

    def run(self, wanted: Sequence[NextTrial]) -> None:
        """Build the sets of WANTED, then run their trials at the same time."""
        todo: list[tuple[NextTrial, Built]] = []
        for one in wanted:
            built = self.state.builds.get(one.chosen) or self.bench.build(self.ordered(one.chosen))
            if isinstance(built, Trial):
                self.record(one, built, recalled=False)
                return
            if one.chosen not in self.state.builds:
                self.append(built)
            todo.append((one, built))
        if propose(self.problem, self.state.evidence) != wanted[0]:
            return  # the new build has the source of a set that was tried before, so its trials count for both
        fresh = [(one, built) for one, built in todo if not self.recall(one, built)]
        if len(fresh) == 1:  # in this thread, which receives an interrupt
            self.remember(*fresh[0], self.bench.trial(fresh[0][1]))
        elif fresh:
            self.run_together(fresh)

    def run_together(self, fresh: Sequence[tuple[NextTrial, Built]]) -> None:
        """Run the trials of FRESH at the same time, and record each that ends.

        Raises Refused with the refusals of all trials. An interrupt stops them all and records none: an engine that
        is stopped says nothing about its patches.
        """
        with ThreadPoolExecutor(len(fresh)) as pool:
            running: list[Future[Trial]] = []
            try:
                for _, built in fresh:
                    running.append(pool.submit(self.bench.trial, built))
                wait(running)
            finally:
                end_all(running, self.bench.clear)
        refusals: list[Refusal] = []
        for (one, built), future in zip(fresh, running, strict=True):
            try:
                trial = future.result()
            except Refused as refused:
                refusals += refused.refusals
            else:
                self.remember(one, built, trial)
        refuse_any(refusals)
