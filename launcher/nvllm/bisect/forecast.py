"""What a search still costs, in builds, trials and minutes: a simulation with one patch after another as culprit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvllm.bisect.driver import guess_next
from nvllm.bisect.judge import failure_rate
from nvllm.bisect.posterior import Beta, Count
from nvllm.bisect.problem import Problem, SearchEvidence, Tally, Trial
from nvllm.bisect.records import BisectState

_FLAKY_CASES = 2
"""Culprits that a forecast of a flaky search simulates: each takes hundreds of trials."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cost of a search in which a single patch is the culprit.

    BUILDS, TRIALS and MINUTES are means over the patches; MOST_BUILDS is the most for any of them. MOST_TRIALS is what
    the limit leaves, so the search never takes more, whatever the cause is; MOST_MINUTES likewise, where hours are
    limited. MINUTES is None as long as nothing says how long a build and a trial take.
    """

    builds: float
    most_builds: int
    trials: float
    most_trials: int
    minutes: float | None
    most_minutes: float | None


def forecast(state: BisectState, seed: int = 0) -> Forecast:
    """Return what the search of STATE still costs. A flaky failure shows at the rates that were seen at the ends."""
    problem, evidence = state.problem, state.evidence
    rng = random.Random(seed)  # noqa: S311 - a simulation
    bad, good = (evidence.tally(chosen) for chosen in (problem.ends["bad"], problem.ends["good"]))
    flaky = problem.settings.flaky or any(one.mixed for one in evidence.tallies.values())
    rate = failure_rate(bad).mean if flaky else 1.0
    stray = Beta(0.2, 9.8).plus(Count(good.bad, good.good)).mean if flaky else 0.0
    items, size = problem.items, len(problem.items)
    if flaky:
        items = items[size // 4 :: max(1, size // _FLAKY_CASES)]
    costs = [_cost(problem, evidence, item, rate, stray, rng) for item in items]
    builds, trials = [one for one, _ in costs], [one for _, one in costs]
    mean_builds, mean_trials = sum(builds) / len(costs), sum(trials) / len(costs)
    each_build = _mean([one.seconds for one in state.builds.values()])
    each_trial = _mean([one.seconds for tried in state.trials.values() for one in tried if not one.recalled])
    minutes = None
    if each_trial is not None:
        minutes = (mean_builds * (each_build or 0.0) + mean_trials * each_trial) / 60
    hours = problem.settings.max_hours
    return Forecast(
        mean_builds,
        max(builds),
        mean_trials,
        max(0, problem.settings.max_trials - evidence.trials),
        minutes,
        None if hours is None else max(0.0, 60 * hours - evidence.spent / 60),
    )


def _mean(seconds: Sequence[float]) -> float | None:
    return sum(seconds) / len(seconds) if seconds else None


def _cost(
    problem: Problem, evidence: SearchEvidence, culprit: str, rate: float, stray: float, rng: random.Random
) -> tuple[int, int]:
    """Return how many more builds and trials it takes to find CULPRIT, after EVIDENCE.

    A set that is broken fails at RATE, any other at STRAY.
    """
    needed = problem.combinations.closed({culprit}) - problem.low
    now, trials = replace(evidence, tallies=dict(evidence.tallies), tried=evidence.trials), 0
    while (answer := guess_next(problem, now)) is not None:
        broken = (needed <= answer.chosen) == (problem.find == "break")
        trial = Trial("bad" if rng.random() < (rate if broken else stray) else "good")
        trials += 1
        now = replace(
            now,
            tallies={**now.tallies, answer.chosen: now.tallies.get(answer.chosen, Tally()).plus(trial)},
            built={*now.built, answer.chosen},
            tried=evidence.trials + trials,
        )
    return len(now.built) - len(evidence.built), trials
