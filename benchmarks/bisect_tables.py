"""Simulated bisects: what a search costs beside ddmin and beside one trial a step, and how often it is wrong.

`python benchmarks/bisect_tables.py [RUNS [TABLE...]]` prints the tables, all or those of the names in `TABLES`, with
RUNS (default 400) cases for each figure. The classes of `tests/support/bisect_landscapes.py` run as often as the goals
say, or RUNS times if that is less. They take a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("launcher", "tests")]

from nvllm.bisect import judge, posterior  # noqa: E402
from nvllm.bisect.combinations import PatchSet  # noqa: E402
from nvllm.bisect.forecast import forecast  # noqa: E402
from nvllm.bisect.problem import (  # noqa: E402
    EndName,
    Mode,
    SearchEvidence,
    Settings,
    Tally,
)
from nvllm.core.refusal import Refused  # noqa: E402
from support.bisect_ddmin import ddmin  # noqa: E402
from support.bisect_landscapes import CONFIDENCES, Case, Outcome, campaigns  # noqa: E402
from support.bisect_world import World, all_of, free, problem, sometimes  # noqa: E402


def by_ddmin(count: int, culprits: PatchSet) -> int:
    """Return how many sets plain ddmin tries, both ends included."""
    patches = free(count)
    tried: set[PatchSet] = {frozenset(), frozenset(patches.order)}

    def shows(chosen: PatchSet) -> bool:
        tried.add(chosen)
        return culprits <= chosen

    assert ddmin(patches, frozenset(patches.order), frozenset(), shows) == culprits
    return len(tried)


def by_groups(count: int, culprits: PatchSet) -> tuple[int, int]:
    """Return how many sets `nvllm bisect --set` builds: to prove the ends and find, and with its certificate."""
    world = World(all_of(culprits))
    done = world.solve(problem(free(count)))
    assert frozenset(done.culprits) == culprits
    assert done.certified
    return len(world.searched), world.builds


def without_noise(runs: int) -> None:
    print(f"Builds to find exactly k culprits of n, both ends included; mean (most) of {runs} cases\n")
    print("| n | k | 2^n | ddmin | nvllm | with the certificate |")
    print("|---|---|---|---|---|---|")
    small = [(count, culprits) for count in (6, 8, 12, 16, 24) for culprits in (1, 2, 3)]
    for count, culprits in (*small, (16, 6), (32, 6), (64, 3), (64, 6), (256, 3)):
        rng = random.Random(100 * count + culprits)
        cases = [frozenset(rng.sample(free(count).order, culprits)) for _ in range(runs)]
        searched = [by_groups(count, case) for case in cases]
        cells = [mean_and_most([by_ddmin(count, case) for case in cases])]
        cells += [mean_and_most([builds for builds, _ in searched]), mean_and_most([builds for _, builds in searched])]
        combinations = f"{2**count:,}" if count <= 32 else f"2^{count}"
        print(f"| {count} | {culprits} | {combinations} | {' | '.join(cells)} |", flush=True)


def mean_and_most(costs: Sequence[int]) -> str:
    return f"{mean(costs):.1f} ({max(costs)})"


@dataclass(frozen=True, slots=True)
class Cost:
    """One simulated search. CERTIFYING of the TRIALS were for the certificate; BUILDS are beside the two ends."""

    right: bool
    trials: int
    certifying: int
    builds: int


def step_by_step(count: int, culprit: str, rng: random.Random, rate: float, most: int) -> Cost:
    """Bisect with at most MOST trials a step, none after a failure, and no certificate."""
    order = free(count).order
    low, high, trials, builds = 0, count, 0, 0
    while high - low > 1:
        middle, builds, failed = (low + high) // 2, builds + 1, False
        for _ in range(most):
            trials += 1
            if culprit in order[:middle] and rng.random() < rate:
                failed = True
                break
        low, high = (low, middle) if failed else (middle, high)
    return Cost(order[high - 1] == culprit, trials, 0, builds)


def by_belief(count: int, culprit: str, rng: random.Random, rate: float, *, known: bool) -> Cost:
    """Search with nvllm; with KNOWN rates the ends need no trials, otherwise these are counted as well."""
    rates = posterior.known(rate, 0.02) if known else None
    asked = problem(free(count), "ordered", settings=Settings(flaky=True, rates=rates))
    ends = {asked.low: Tally(good=60), asked.high: Tally(bad=20)} if known else {}
    world = World(sometimes(frozenset({culprit}), rng, rate, 0.02 if known else 0.0), dict(ends))
    try:
        right = world.solve(asked).culprits == (culprit,)
    except Refused:  # an end that failed too seldom: an honest answer, and not the right one
        right = False
    return Cost(right, world.trials, world.certifying, world.builds - 2)


def with_noise(runs: int) -> None:
    print(f"\n16 patches, one culprit, a failure that shows at rate p; {runs} cases")
    print("right / trials, of which for the certificate / builds beside the ends\n")
    print("| method | p = 0.8 | p = 0.4 |")
    print("|---|---|---|")
    for most in (1, 5, 9):
        cells = []
        for rate in (0.8, 0.4):
            rng = random.Random(most)
            cells.append(summary([step_by_step(16, rng.choice(free(16).order), rng, rate, most) for _ in range(runs)]))
        name = "one trial a step" if most == 1 else f"up to {most} trials a step"
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for known, name in (
        (True, "nvllm, 99 %, rates known"),
        (False, "nvllm, 99 %, rates unknown, both ends tried as well"),
    ):
        cells = []
        for rate in (0.8, 0.4):
            rng = random.Random(9)
            cells.append(
                summary([by_belief(16, rng.choice(free(16).order), rng, rate, known=known) for _ in range(runs)])
            )
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def summary(results: Sequence[Cost]) -> str:
    right, trials = mean(cost.right for cost in results), mean(cost.trials for cost in results)
    certifying, builds = mean(cost.certifying for cost in results), mean(cost.builds for cost in results)
    return f"{right:.3f} / {trials:.1f}, {certifying:.1f} / {builds:.1f}"


def undeclared(runs: int) -> None:
    """Print how often a certificate is wrong where a failure is flaky and nobody said so."""
    print(f"\nA failure that shows at rate p, searched without --flaky; 12 patches, {runs} cases")
    print("certified (of these wrong) / refused, because an end did not show it\n")
    print("| mode | p = 0.9 | p = 0.7 | p = 0.4 |")
    print("|---|---|---|---|")
    modes: tuple[tuple[Mode, int], ...] = (("ordered", 1), ("set", 2))
    for mode, culprits in modes:
        cells = []
        for rate in (0.9, 0.7, 0.4):
            rng = random.Random(4)
            certified = wrong = refused = 0
            for _ in range(runs):
                cause = frozenset(rng.sample(free(12).order, culprits))
                try:
                    done = World(sometimes(cause, rng, rate)).solve(problem(free(12), mode, settings=Settings()))
                except Refused:
                    refused += 1
                    continue
                certified += done.certified
                wrong += done.certified and frozenset(done.culprits) != cause
            cells.append(f"{certified} ({wrong}) / {refused}")
        print(f"| {mode}, k = {culprits} | {' | '.join(cells)} |", flush=True)


SEED = 1
"""The seed of the landscapes."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A class of landscapes: how many RUNS, the figure BEFORE this search, the GOAL, and how it is measured."""

    name: str
    runs: int
    before: str
    goal: str
    measure: Callable[[Sequence[Outcome]], tuple[str, bool]]


def certified(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Return how many of OUTCOMES are certified and right, and certified and wrong."""
    right = sum(outcome.certified and outcome.right for outcome in outcomes)
    return right, sum(outcome.certified for outcome in outcomes) - right


def extra_trials(outcomes: Sequence[Outcome]) -> float:
    """Return the mean number of trials that the same cases take without untestable trials, less than OUTCOMES."""
    steady = []
    for outcome in outcomes:
        world = World(all_of(outcome.case.cause))
        world.solve(outcome.case.problem)
        steady.append(world.trials)
    return mean(outcome.trials for outcome in outcomes if outcome.done is not None) - mean(steady)


def of_transient(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    right, wrong = certified(outcomes)
    more = extra_trials(outcomes)
    refused = sum(outcome.done is None for outcome in outcomes)
    met = right >= 0.95 * len(outcomes) and not wrong and more <= 15
    return f"{right} of {len(outcomes)} certified right, {wrong} wrong, {refused} refused; {more:+.1f} trials", met


def of_required(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    innocent = sum(
        bool(frozenset(outcome.done.culprits) - outcome.case.cause) for outcome in outcomes if outcome.done is not None
    )
    along = sum(bool(outcome.done.along) for outcome in outcomes if outcome.done is not None)
    return f"{innocent} of {len(outcomes)}; in {along} something comes along, and is said to", innocent == 0


def of_disjoint(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    stays = noted = both = 0
    for outcome in outcomes:
        assert outcome.done is not None
        left = outcome.case.problem.combinations.without(outcome.case.problem.high, outcome.done.culprits)
        stays += outcome.case.fails(left)
        rest = outcome.done.rest
        noted += rest is not None and rest.holds and rest.verdict.outcome == "bad"
        every = World(outcome.case.judge).solve(replace(outcome.case.problem, further=True))
        both += {frozenset(other.culprits) for other in (every, *every.further)} == {
            outcome.case.cause,
            outcome.case.other,
        }
    figures = f"the failure stays in {stays} of {len(outcomes)}, said in {noted}; --all finds both in {both}"
    return figures, stays == noted == both


def of_untestable(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    right, wrong = certified(outcomes)
    builds = mean(outcome.builds for outcome in outcomes)
    untrue = sum(
        any("monotone" in note for note in outcome.done.notes) for outcome in outcomes if outcome.done is not None
    )
    missed = sum(outcome.missed for outcome in outcomes)
    ddmin = mean(ddmin_of(outcome.case) for outcome in outcomes)
    figures = f"{builds:.1f} builds (ddmin {ddmin:.1f}), {untrue} untrue notes, {right} certified right, {wrong} wrong"
    return f"{figures}, {missed} open and wrong", builds <= 20 and not untrue and not wrong


def ddmin_of(case: Case) -> int:
    """Return how many sets plain ddmin tries in CASE, where a set that cannot be tested does not show the effect."""
    tried: dict[PatchSet, bool] = {case.problem.low: False, case.problem.high: True}

    def shows(chosen: PatchSet) -> bool:
        if chosen not in tried:
            tried[chosen] = case.judge(chosen).outcome == "bad"
        return tried[chosen]

    ddmin(case.problem.combinations, case.problem.high, case.problem.low, shows)
    return len(tried)


def of_false_alarms(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    right, wrong = certified(outcomes)
    trials = [outcome.trials for outcome in outcomes]
    refused = sum(outcome.done is None for outcome in outcomes)
    missed = sum(outcome.missed and not outcome.certified for outcome in outcomes)
    most = max(outcome.case.problem.settings.max_trials for outcome in outcomes)
    figures = f"median {median(trials):.0f}, at most {max(trials)} (limit {most}) trials; {right} certified right"
    met = median(trials) <= 150 and max(trials) <= most and not wrong
    return f"{figures}, {wrong} wrong, {refused} ends refused, {missed} open and wrong", met


def of_nothing(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    confidence = outcomes[0].case.problem.settings.confidence
    ends, right = sum(outcome.done is not None for outcome in outcomes), sum(outcome.certified for outcome in outcomes)
    figures = (
        f"ends proved in {100 * ends / len(outcomes):.1f} %, an answer certified in {100 * right / len(outcomes):.1f} %"
    )
    return figures, ends <= (1 - confidence) * len(outcomes)


def of_drift(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    right, wrong = certified(outcomes)
    drifting = sum(outcome.done is not None and "rate has fallen" in outcome.done.stopped for outcome in outcomes)
    refused = sum(outcome.done is None for outcome in outcomes)
    return (
        f"{wrong} of {len(outcomes)}; {right} certified right, {drifting} said to drift, {refused} ends refused",
        not wrong,
    )


def of_calibration(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    right, wrong = certified(outcomes)
    observed = right / max(1, right + wrong)
    refused = sum(outcome.done is None for outcome in outcomes)
    still = len(outcomes) - right - wrong - refused
    confidence = outcomes[0].case.problem.settings.confidence
    figures = f"{observed:.3f} of {right + wrong} certified; {refused} ends refused, {still} open"
    return figures, observed >= confidence


GOALS = (
    Goal("transient", 400, "236 of 400 certified right, 94 refused", ">= 95 % right, 0 wrong, <= +15", of_transient),
    Goal("required", 400, "innocent patches named in 179 of 446", "0", of_required),
    Goal("disjoint", 243, "stays in 155 of 243, said in 0", "always said, both found", of_disjoint),
    Goal(
        "untestable", 291, "28.8 builds, ddmin 29.0; 96 of 194 untrue notes", "<= 20 builds, notes true", of_untestable
    ),
    Goal(
        "false alarms",
        190,
        "about 440, up to 3001; 20 open and wrong",
        "median <= 150, a limit, 0 wrong",
        of_false_alarms,
    ),
    *(
        Goal(f"nothing {confidence:.2f}", 400, before, f"<= {100 * (1 - confidence):.0f} %", of_nothing)
        for confidence, before in zip(CONFIDENCES, ("", "13 %", "3 %", "1 %"), strict=True)
    ),
    Goal("drift", 200, "7 of 63 certified wrong", "0", of_drift),
    *(
        Goal(f"calibration {confidence:.2f}", 400, before, f">= {confidence:.2f}", of_calibration)
        for confidence, before in zip(CONFIDENCES, ("0.814", "", "0.942", ""), strict=True)
    ),
)


def landscapes(runs: int) -> None:
    """Print what became of each class of failures that people have, beside its goal."""
    print(f"\nFailures as people have them, at confidence 0.99 unless said otherwise; seed {SEED}\n")
    print("| class (runs) | before | goal | now | met |")
    print("|---|---|---|---|---|")
    for goal in GOALS:
        count = min(goal.runs, runs)
        figures, met = goal.measure(list(campaigns(goal.name, count, SEED)))
        verdict = "yes" if met else "no"
        print(f"| {goal.name} ({count}) | {goal.before} | {goal.goal} | {figures} | {verdict} |", flush=True)


def mark(rng: random.Random, rate: float) -> str:
    return "x" if rng.random() < rate else "+"


def counted(order: str) -> Tally:
    return Tally(order.count("x"), order.count("+"), order=order)


def proof(rng: random.Random, rate: float) -> str:
    """Return the trials of a bad end that fails at RATE until it is proved, or empty if that takes too many; the good
    end never fails."""
    ends: dict[EndName, str] = {"bad": "", "good": ""}
    rates: dict[EndName, float] = {"bad": rate, "good": 0.0}
    with contextlib.suppress(Refused):
        while asked := judge.next_end(counted(ends["bad"]), counted(ends["good"]), Settings(flaky=True)):
            ends[asked.end] += mark(rng, rates[asked.end])
        return ends["bad"]
    return ""


def falls(rng: random.Random, proved: str, rate: float) -> bool:
    """Return whether the watch says that the rate of the bad end has fallen, if it fails at RATE after it was PROVED.

    It is tried once more after each 12 of 400 other trials, and at once while the watch is in doubt.
    """
    order, trials = proved, 0
    while trials < 400:
        order += mark(rng, rate)
        seen = judge.watch(order, len(proved))
        if seen.fallen:
            return True
        trials += 0 if seen.doubtful else 12
    return False


def watch(runs: int) -> None:
    """Print how often the failure rate is said to have fallen, by what it is after the bad end was proved."""
    print(f"\nHow often the failure rate is said to have fallen; {runs} searches for each figure\n")
    print("| rate | constant | to a quarter | to 0 |\n|---|---|---|---|")
    for rate in (0.8, 0.5, 0.35, 0.25):
        rng = random.Random(f"watch/{rate}")
        proofs = [*filter(None, (proof(rng, rate) for _ in range(max(10, runs // 10))))]
        cells = []
        for later in (rate, rate / 4, 0.0):
            fallen = sum(falls(rng, rng.choice(proofs), later) for _ in range(runs))
            cells.append(f"{100 * fallen / runs:.2f} %")
        print(f"| {rate} | {' | '.join(cells)} |", flush=True)


def forecasts(_: int) -> None:
    """Print how long a forecast takes before the first trial, when most is left, in seconds of processor time."""
    print("\n| patches | mode | failure | seconds |\n|---|---|---|---|")
    modes: tuple[Mode, ...] = ("ordered", "set")
    for count, mode, flaky in itertools.product((64, 128, 256), modes, (False, True)):
        asked = problem(free(count), mode, settings=Settings(flaky=flaky))
        began = time.process_time()
        forecast(asked, SearchEvidence({}), [], [])
        took = time.process_time() - began
        print(f"| {count} | {mode} | {'flaky' if flaky else 'steady'} | {took:.2f} |", flush=True)


TABLES: Mapping[str, Callable[[int], None]] = {
    "builds": without_noise,
    "noise": with_noise,
    "undeclared": undeclared,
    "classes": landscapes,
    "forecasts": forecasts,
    "watch": watch,
}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    for name in sys.argv[2:] or TABLES:
        TABLES[name](runs)


if __name__ == "__main__":
    main()
