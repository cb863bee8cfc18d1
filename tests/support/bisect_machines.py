"""A simulated search on several machines: trials that take time, stragglers, and machines that are lost."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from nvllm.bisect.answer import Done
from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.lookahead import Slots, to_begin
from nvllm.bisect.problem import Problem, SearchEvidence, Tally
from nvllm.bisect.search import propose
from support.bisect_world import Judge

Seconds = Callable[[], float]
"""How long the next trial takes, in usual trials."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What a search cost: BUILDS and TRIALS that were begun, LOST of them without a result, and how LONG it took.

    LONG counts usual trials that follow one another; where every trial takes one, it is the number of rounds.
    """

    done: Done
    builds: int
    trials: int
    lost: int
    long: float


def alike() -> float:
    return 1.0


def straggling(rng: random.Random) -> Seconds:
    """Return how long trials take of which one in twenty takes five times as long as the others."""
    return lambda: (5.0 if rng.random() < 0.05 else 1.0) * rng.uniform(0.9, 1.1)


def search(
    problem: Problem,
    judge: Judge,
    machines: int,
    seconds: Seconds = alike,
    *,
    losses: float = 0.0,
    rng: random.Random | None = None,
) -> Campaign:
    """Search on MACHINES as the driver does: when a trial ends, ask what to begin. A part of them, LOSSES, is lost."""
    chance = rng or random.Random(0)
    tallies: dict[PatchSet, Tally] = {}
    built: set[PatchSet] = set()
    running: list[tuple[float, int, PatchSet, bool]] = []
    order, now, trials, lost = itertools.count(), 0.0, 0, 0
    while True:
        evidence = SearchEvidence(dict(tallies), frozenset(built))
        answer = propose(problem, evidence)
        if isinstance(answer, Done):
            return Campaign(answer, len(built), trials, lost, now)
        for one in to_begin(problem, evidence, [chosen for _, _, chosen, _ in running], Slots(machines)):
            assert problem.combinations.valid(one.chosen)
            built.add(one.chosen)
            trials += 1
            dies = chance.random() < losses
            ends = now + seconds() * (chance.random() if dies else 1.0)
            heapq.heappush(running, (ends, next(order), one.chosen, dies))
        now = running[0][0]
        while running and running[0][0] == now:
            _, _, chosen, dies = heapq.heappop(running)
            if dies:
                lost += 1
            else:
                tallies[chosen] = tallies.get(chosen, Tally()).plus(judge(chosen))
