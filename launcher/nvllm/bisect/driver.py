"""Carrying a search out: ask what is next, build it, try it, write down what came of it, ask again.

Simulations and real bisects go through here alike; they differ in the bench that tries the sets, and in the log.
Everything is written down before it is believed, so a kill at any point loses the trial in flight and no more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from nvllm.bisect import journal, search
from nvllm.bisect.end_proof import failure_rate
from nvllm.bisect.journal import BisectState, Built, End, Judged, Log, Tried
from nvllm.bisect.problem import Problem, SearchEvidence
from nvllm.bisect.search import Done, NextTrial, propose
from nvllm.bisect.trial_cache import TrialCache
from nvllm.bisect.verdict import PatchSet, Tally, Trial, Verdict
from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refusal, Refused, refuse_any


class Bench(Protocol):
    """What builds and tries sets of patches. No method writes anything down."""

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        """Return the image of CHOSEN, or the untestable trial that says why there is none."""

    def trial(self, built: Built) -> Trial:
        """Try BUILT once. Raises Refused NV808 when the probe wants the whole bisect to stop."""

    def clear(self) -> None:
        """End whatever runs for a trial, so that a trial under way in another thread ends soon."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The budget is spent. NEXT_TRIAL is what would be next; see `search.beliefs` for what is known."""

    next_trial: NextTrial


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How much may be spent: seconds from now on (None: no end), and how many trials at a time."""

    budget: float | None = None
    jobs: int = 1


def drive(
    log: Log,
    bench: Bench,
    *,
    cache: TrialCache | None = None,
    limits: RunLimits | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Done | Unfinished:
    """Carry the search of LOG on with BENCH to its end, or to the end of the budget.

    Raises Refused NV801 where an end is not as declared, NV806 where the log cannot be written, and what the
    bench raises. The log is whole afterwards in every case, and driving it again goes on where it stopped.
    """
    limits, said = limits or RunLimits(), progress or Silent()
    driver = _Driver(log, bench, cache, said)
    deadline = None if limits.budget is None else clock() + limits.budget
    while True:
        driver.judge()
        answer = propose(driver.problem, driver.state.evidence)
        if isinstance(answer, Done):
            if driver.state.end is None:
                driver.append(End(answer.culprits, answer.exact, answer.certified))
            return answer
        if deadline is not None and clock() >= deadline:
            return Unfinished(answer)
        driver.serve(ahead(driver.problem, driver.state.evidence, limits.jobs))


class _Driver:
    def __init__(self, log: Log, bench: Bench, cache: TrialCache | None, progress: Progress) -> None:
        self.log = log
        self.bench = bench
        self.cache = cache
        self.progress = progress
        self.state = log.state
        self.problem = self.state.problem

    def append(self, record: journal.JournalRecord) -> None:
        self.log.append(record)
        self.state = self.state.after(record)

    def judge(self) -> None:
        """Write each verdict that has become another one: the last trials may have been of several sets at once."""
        for chosen in self.state.trials:
            found = search.concluded(self.problem, self.state.evidence, chosen)
            if found is not None:
                self._judge(chosen, found)

    def _judge(self, chosen: PatchSet, found: Verdict) -> None:
        detail = found.kind or found.stage or ""
        judged = Judged(self._ordered(chosen), found.outcome, detail, found.confidence)
        before = self.state.judged.get(chosen)
        if before is None or (before.outcome, before.detail) != (judged.outcome, judged.detail):
            self.append(judged)

    def serve(self, requests: Sequence[NextTrial]) -> None:
        """Build what is wanted, then run the trials at the same time."""
        todo: list[tuple[NextTrial, Built]] = []
        for request in requests:
            built = self._built(request)
            if built is None:
                return
            todo.append((request, built))
        if propose(self.problem, self.state.evidence) != requests[0]:
            return  # the build showed that the tree is one that was tried already
        fresh = [(request, built) for request, built in todo if not self._recall(request, built)]
        if len(fresh) == 1:  # in this thread, where an interrupt comes
            request, built = fresh[0]
            self._new(request, built, self.bench.trial(built))
        elif fresh:
            self._together(fresh)

    def _together(self, fresh: Sequence[tuple[NextTrial, Built]]) -> None:
        """Run the trials of FRESH at the same time, and write down each that came to an end.

        Raises Refused with what all that were refused said. An interrupt ends them all, and writes none down: an
        engine that is torn down says nothing about its patches.
        """
        with ThreadPoolExecutor(len(fresh)) as pool:
            running: list[Future[Trial]] = []
            try:
                for _, built in fresh:
                    running.append(pool.submit(self.bench.trial, built))
                wait(running)
            finally:
                while wait(running, _BETWEEN_CLEARS).not_done:
                    self.bench.clear()
        refusals: list[Refusal] = []
        for (request, built), one in zip(fresh, running, strict=True):
            try:
                trial = one.result()
            except Refused as refused:
                refusals += refused.refusals
            else:
                self._new(request, built, trial)
        refuse_any(refusals)

    def _built(self, request: NextTrial) -> Built | None:
        """Return the image of REQUEST, or None if there is none, which is written down."""
        built = self.state.builds.get(request.chosen)
        if built is not None:
            return built
        build = self.bench.build(self._ordered(request.chosen))
        if isinstance(build, Trial):
            self._write(request, build, recalled=False)
            return None
        self.append(build)
        return build

    def _recall(self, request: NextTrial, built: Built) -> bool:
        """Take the next trial of BUILT from the cache, and say whether there was one."""
        known = self.cache.recall(built.build_hash) if self.cache is not None else ()
        used = len(self.state.trials.get(request.chosen, ()))
        if used >= len(known):
            return False
        self._write(request, known[used], recalled=True)
        return True

    def _new(self, request: NextTrial, built: Built, trial: Trial) -> None:
        self._write(request, trial, recalled=False)
        if self.cache is not None:
            self.cache.remember(built.build_hash, trial)

    def _write(self, request: NextTrial, trial: Trial, *, recalled: bool) -> None:
        chosen = self._ordered(request.chosen)
        self.append(
            Tried(
                chosen,
                trial.outcome,
                trial.kind,
                trial.stage,
                trial.evidence,
                round(trial.seconds, 3),
                recalled,
                request.reason,
            )
        )
        detail = trial.kind or trial.stage or ""
        number = sum(len(tried) for tried in self.state.trials.values())
        shown = ", ".join(chosen) or "no patch"
        self.progress.note(f"trial {number}: {trial.outcome} {f'({detail}) ' if detail else ''}with {shown}")

    def _ordered(self, chosen: Iterable[str]) -> tuple[str, ...]:
        return self.problem.combinations.ordered(chosen)


def ahead(problem: Problem, evidence: SearchEvidence, jobs: int) -> list[NextTrial]:
    """Return up to JOBS trials to run at the same time: the one that is next, and those that its outcome may ask for.

    The list is not empty, and holds no set twice: two engines of one image and one profile have one serve hash,
    which only one of them can lock. While an end is not proved, the ends alone are in it: what they are decides
    whether there is anything to search.
    """
    first = propose(problem, evidence)
    assert isinstance(first, NextTrial)
    found, waiting = [first], [(evidence, first)]
    for _ in range(_FORESIGHT * jobs):
        if not waiting or len(found) >= jobs:
            break
        before, request = waiting.pop(0)
        for trial in (Trial("bad"), Trial("good")):
            guess = before.tally(request.chosen).plus(trial)
            guessed = SearchEvidence({**before.tallies, request.chosen: guess}, {*before.built, request.chosen})
            answer = _guess(problem, guessed)
            if answer is None or (first.purpose == "end" and answer.purpose != "end"):
                continue
            waiting.append((guessed, answer))
            if len(found) < jobs and all(one.chosen != answer.chosen for one in found):
                found.append(answer)
    return found


def _guess(problem: Problem, evidence: SearchEvidence) -> NextTrial | None:
    try:
        answer = propose(problem, evidence)
    except Refused:  # a guess may make an end wrong, which proves nothing
        return None
    return answer if isinstance(answer, NextTrial) else None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a search is going to cost, if one patch alone is the culprit: on average, and at worst."""

    builds: float
    most_builds: int
    trials: float
    most_trials: int


def forecast(state: BisectState, seed: int = 0) -> Forecast:
    """Return what the search of STATE still costs: each patch in turn is taken for the culprit."""
    problem, evidence = state.problem, state.evidence
    rng = random.Random(seed)  # noqa: S311 - a simulation
    flaky = problem.settings.flaky or any(one.mixed for one in evidence.tallies.values())
    bad = evidence.tally(problem.high if problem.find == "break" else problem.low)
    rate = failure_rate(bad).mean if flaky else 1.0
    costs = [_cost(problem, evidence, item, lambda: rng.random() < rate) for item in problem.items]
    builds, trials = [one for one, _ in costs], [one for _, one in costs]
    return Forecast(sum(builds) / len(costs), max(builds), sum(trials) / len(costs), max(trials))


_BETWEEN_CLEARS = 1.0
"""Seconds after which trials that were told to end are told again: one of them may just have begun an engine."""

_TOO_LONG = 5000
_FORESIGHT = 4


def _cost(problem: Problem, evidence: SearchEvidence, culprit: str, fails: Callable[[], bool]) -> tuple[int, int]:
    """Return how many builds and trials it takes to find CULPRIT, given EVIDENCE."""
    tallies: dict[PatchSet, Tally] = dict(evidence.tallies)
    built = set(evidence.built)
    needed = problem.combinations.closed({culprit}) - problem.low
    trials = 0
    while trials < _TOO_LONG:
        answer = _guess(problem, SearchEvidence(tallies, built))
        if answer is None:
            break
        broken = (needed <= answer.chosen) == (problem.find == "break")
        trial = Trial("bad" if broken and fails() else "good")
        tallies[answer.chosen] = tallies.get(answer.chosen, Tally()).plus(trial)
        built.add(answer.chosen)
        trials += 1
    return len(built) - len(evidence.built), trials
