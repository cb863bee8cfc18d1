"""What a search asks for next if its trials end in one way or another, and what it still costs.

The cost, in builds, trials and minutes, is a simulation with one patch after another as culprit, of those that may
still be one after the trials so far.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from nvllm.bisect import search
from nvllm.bisect.answer import NextTrial
from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.judge import failure_rate
from nvllm.bisect.posterior import Beta, Count
from nvllm.bisect.problem import Problem, SearchEvidence
from nvllm.bisect.search import propose
from nvllm.core.refusal import Refused
from nvllm.trials.trial import Trial

_SURE, _RULED_OUT = 0.9, 0.005
"""Probabilities above which a patch counts as needed, and below which it is left out."""

_FLAKY_CASES, _FEW_PATCHES = 2, 128
"""Culprits that a forecast of a flaky search simulates, where there are few patches; with more it is one: each takes
hundreds of trials."""

_STEADY_CASES = 32
"""The most culprits that a forecast simulates, evenly spread."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cost of a search in which a single patch is the culprit, or one more than is known.

    BUILDS, TRIALS and MINUTES are means over the patches that may be; MOST_BUILDS is the most for any of them.
    MOST_TRIALS is what the limit leaves, so the search never takes more, whatever the cause is; MOST_MINUTES likewise,
    where hours are limited. MINUTES is None as long as nothing says how long a build and a trial take.
    """

    builds: float
    most_builds: int
    trials: float
    most_trials: int
    minutes: float | None
    most_minutes: float | None


def forecast(
    problem: Problem, evidence: SearchEvidence, builds: Sequence[float], trials: Sequence[float], seed: int = 0
) -> Forecast:
    """Return what the search of PROBLEM still costs after EVIDENCE, from the seconds that BUILDS and TRIALS took.

    A flaky failure shows at the rates that were seen at the ends.
    """
    rng = random.Random(seed)  # noqa: S311 - a simulation
    bad, good = (evidence.tally(chosen) for chosen in (problem.ends["bad"], problem.ends["good"]))
    flaky = problem.settings.flaky or any(tally.mixed for tally in evidence.tallies.values())
    rate = failure_rate(bad).mean if flaky else 1.0
    stray = Beta(0.2, 9.8).plus(Count(good.bad, good.good)).mean if flaky else 0.0
    causes = _causes(problem, evidence, flaky=flaky)
    if flaky:
        cases = _FLAKY_CASES if len(problem.items) <= _FEW_PATCHES else 1
        causes = causes[len(causes) // (2 * cases) :: max(1, len(causes) // cases)]
    causes = causes[:: math.ceil(len(causes) / _STEADY_CASES)]
    costs = [_cost(problem, evidence, cause, rate, stray, rng) for cause in causes]
    mean_builds, mean_trials = (sum(column) / len(costs) for column in zip(*costs, strict=True))
    each_build, each_trial = _mean(builds), _mean(trials)
    minutes = None
    if each_trial is not None:
        minutes = (mean_builds * (each_build or 0.0) + mean_trials * each_trial) / 60
    hours = problem.settings.max_hours
    return Forecast(
        mean_builds,
        max(count for count, _ in costs),
        mean_trials,
        max(0, problem.most_trials - evidence.trials),
        minutes,
        None if hours is None else max(0.0, 60 * hours - evidence.spent / 60),
    )


def _causes(problem: Problem, evidence: SearchEvidence, *, flaky: bool) -> list[PatchSet]:
    """Return the causes that may still be the right one.

    They are single patches; where none explains all trials, one patch more than those that are known to be needed;
    and where that explains nothing either, what is known.
    """
    known = search.beliefs(problem, evidence)
    least = min(_RULED_OUT, 0.5 / len(known))
    needed = frozenset(name for name, chance in known if chance > _SURE)
    seen = [(chosen, problem.count(tally)) for chosen, tally in evidence.tallies.items()]
    for base in (frozenset[str](), needed):
        left = [name for name, chance in known if chance > least]
        causes = [problem.combinations.closed({*base, name}) - problem.low for name in left]
        fitting = [
            cause
            for cause in dict.fromkeys(causes)
            if flaky or all(not (count.misses if cause <= chosen else count.hits) for chosen, count in seen)
        ]
        if fitting:
            return fitting
    return [problem.combinations.closed(needed or problem.items) - problem.low]


def _mean(seconds: Sequence[float]) -> float | None:
    return sum(seconds) / len(seconds) if seconds else None


def _cost(
    problem: Problem, evidence: SearchEvidence, cause: PatchSet, rate: float, stray: float, rng: random.Random
) -> tuple[int, int]:
    """Return how many more builds and trials it takes to find CAUSE, after EVIDENCE.

    A set that is broken fails at RATE, any other at STRAY.
    """
    now, trials = evidence, 0
    while (answer := guess_next(problem, now)) is not None:
        broken = (cause <= answer.chosen) == (problem.find == "break")
        trial = Trial("bad" if rng.random() < (rate if broken else stray) else "good")
        trials += 1
        now = now.after(answer.chosen, trial)
    return len(now.built) - len(evidence.built), trials


def guess_next(problem: Problem, evidence: SearchEvidence) -> NextTrial | None:
    """Return the next trial after EVIDENCE, some of which is guessed; None if there is none."""
    try:
        answer = propose(problem, evidence)
    except Refused:  # a guessed outcome may contradict an end, which proves nothing
        return None
    return answer if isinstance(answer, NextTrial) else None
