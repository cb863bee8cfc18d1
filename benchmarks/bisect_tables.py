"""Simulated bisects: what a search costs beside ddmin and beside one trial a step, and how often it is wrong.

`python benchmarks/bisect_tables.py [RUNS]` prints the tables, with RUNS (default 400) cases for each figure.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("launcher", "tests")]

from nvllm.bisect import combinations, posterior  # noqa: E402
from nvllm.bisect.problem import Mode, Settings  # noqa: E402
from nvllm.bisect.verdict import PatchSet, Tally  # noqa: E402
from nvllm.core.refusal import Refused  # noqa: E402
from support.bisect_world import World, all_of, free, problem, sometimes  # noqa: E402


def by_ddmin(count: int, culprits: PatchSet) -> int:
    """Return how many sets plain ddmin tries, both ends included."""
    found = free(count)
    tried: set[PatchSet] = {frozenset(), frozenset(found.order)}

    def shows(chosen: PatchSet) -> bool:
        tried.add(chosen)
        return culprits <= chosen

    assert combinations.minimise(found, frozenset(found.order), frozenset(), shows) == culprits
    return len(tried)


def by_prefixes(count: int, culprits: PatchSet) -> tuple[int, int]:
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
    for count in (6, 8, 12, 16, 24):
        for culprits in (1, 2, 3):
            rng = random.Random(100 * count + culprits)
            cases = [frozenset(rng.sample(free(count).order, culprits)) for _ in range(runs)]
            prefixes = [by_prefixes(count, case) for case in cases]
            cells = [shown([by_ddmin(count, case) for case in cases])]
            cells += [shown([one for one, _ in prefixes]), shown([one for _, one in prefixes])]
            print(f"| {count} | {culprits} | {2**count:,} | {' | '.join(cells)} |", flush=True)


def shown(costs: Sequence[int]) -> str:
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
    right, trials = mean(one.right for one in results), mean(one.trials for one in results)
    certifying, builds = mean(one.certifying for one in results), mean(one.builds for one in results)
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


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    without_noise(runs)
    with_noise(runs)
    undeclared(runs)


if __name__ == "__main__":
    main()
