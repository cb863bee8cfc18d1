"""Simulated bisects on several machines: what they build and try, and in how many rounds, with losses and stragglers.

`python benchmarks/machine_tables.py [RUNS]` prints the tables, with RUNS (default 40) cases for each figure.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from statistics import mean

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("launcher", "tests")]

from nvllm.bisect.problem import Mode, Settings  # noqa: E402
from support.bisect_machines import Campaign, search, straggling  # noqa: E402
from support.bisect_world import all_of, free, problem, sometimes  # noqa: E402

COUNT = 16
FEW, MANY = (1, 2, 4, 8), (1, 8, 16, 32, 64)
FLAKY = 40
"""Cases of a steady failure for each one of a flaky failure, which takes a hundred times as long to simulate."""

LOSSES = 0.05
"""Of the trials, those whose machine is lost."""


def campaigns(mode: Mode, culprits: int, machines: int, runs: int) -> list[Campaign]:
    """Return RUNS searches on MACHINES for CULPRITS of sixteen patches; every answer is right and certified."""
    rng, searches = random.Random(17 * culprits), []
    for _ in range(runs):
        cause = frozenset(rng.sample(free(COUNT).order, culprits))
        done = search(problem(free(COUNT), mode, settings=Settings()), all_of(cause), machines)
        assert done.done.certified
        assert frozenset(done.done.culprits) == cause
        searches.append(done)
    return searches


def on_a_few(runs: int) -> None:
    print(f"{COUNT} patches, a steady failure, both ends and every line of the certificate tried three times;")
    print(f"mean of {runs} cases; a round is as long as one trial\n")
    print(
        "| machines | one culprit, ordered: builds | trials | rounds | two culprits, --set: builds | trials | rounds |"
    )
    print("|---|---|---|---|---|---|---|")
    for machines in FEW:
        cells = []
        for mode, culprits in (("ordered", 1), ("set", 2)):
            searches = campaigns("ordered" if mode == "ordered" else "set", culprits, machines, runs)
            cells += [mean(campaign.builds for campaign in searches), mean(campaign.trials for campaign in searches)]
            cells.append(mean(campaign.long for campaign in searches))
        print(f"| {machines} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


def on_many(runs: int) -> None:
    print(
        "\nThe same, --set, one culprit. Of the trials, 5% lose their machine, and 5% take five times as long. Steady:"
    )
    print(f"{runs} cases, a quarter of them with 64 machines. Flaky, at a rate of 0.6: {max(1, runs // FLAKY)}.")
    print("Long: in usual trials\n")
    print("| machines | steady: right | trials | lost | long | flaky: right | trials | lost | long |")
    print("|---|---|---|---|---|---|---|---|---|")
    for machines in MANY:
        cells = with_losses(machines, runs if machines < MANY[-1] else max(1, runs // 4), flaky=False)
        # With 64 machines, each step of a flaky search looks seconds ahead: nothing for a simulation.
        cells += with_losses(machines, max(1, runs // FLAKY), flaky=True) if machines < MANY[-1] else ["-"] * 4
        print(f"| {machines} | {' | '.join(cells)} |", flush=True)


def with_losses(machines: int, runs: int, *, flaky: bool) -> list[str]:
    """Return of RUNS searches on MACHINES how many were right, their trials, those lost, and how long they took."""
    rng, searches, right = random.Random(machines), [], 0
    for _ in range(runs):
        cause = frozenset(rng.sample(free(COUNT).order, 1))
        asked = problem(free(COUNT), settings=Settings(flaky=flaky))
        judge = sometimes(cause, rng, 0.6) if flaky else all_of(cause)
        campaign = search(asked, judge, machines, straggling(rng), losses=LOSSES, rng=rng)
        right += frozenset(campaign.done.culprits) == cause
        searches.append(campaign)
    figures = (
        mean(campaign.trials for campaign in searches),
        mean(campaign.lost for campaign in searches),
        mean(campaign.long for campaign in searches),
    )
    return [f"{right} of {runs}", *(f"{figure:.1f}" for figure in figures)]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    on_a_few(runs)
    on_many(runs)


if __name__ == "__main__":
    main()
