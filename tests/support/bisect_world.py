"""A simulated world for bisect tests: patches, a hidden cause, and trials that cost nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nvllm.bisect import records
from nvllm.bisect.answer import Done
from nvllm.bisect.combinations import Combinations, PatchSet, set_hash
from nvllm.bisect.problem import Find, Mode, Problem, SearchEvidence, Settings, Tally
from nvllm.bisect.records import BisectStart
from nvllm.bisect.search import propose
from nvllm.trials.trial import BisectProbe, Built, Trial

Judge = Callable[[PatchSet], Trial]

GOOD = Trial("good")
BAD = Trial("bad", kind="exit 1")
UNTESTABLE = Trial("untestable", stage="build")


def names(count: int) -> tuple[str, ...]:
    return tuple(f"p{index:02}" for index in range(1, count + 1))


def free(count: int) -> Combinations:
    """Return COUNT patches of which none requires another."""
    return Combinations(names(count), {}, {})


def layered(count: int, rng: random.Random, chance: float = 0.15) -> Combinations:
    """Return COUNT patches, each of which requires each earlier one with probability CHANCE."""
    order = names(count)
    requires = {
        one: frozenset(other for other in order[:index] if rng.random() < chance) for index, one in enumerate(order)
    }
    return Combinations(order, requires, {})


ONCE = Settings(repeats=1)
FLAKY = Settings(flaky=True)


def problem(combinations: Combinations, mode: Mode = "set", find: Find = "break", settings: Settings = ONCE) -> Problem:
    return Problem(combinations, frozenset(), frozenset(combinations.order), find, mode, settings)


@dataclass
class World:
    """Answers requests by JUDGE and counts what that cost.

    SEARCHED are the sets that were asked for to prove an end or to find the culprits; what only the certificate asked
    for is not among them. CERTIFYING and WATCHING are how many of the TRIALS were for the certificate, and to see if
    the failure rate falls.
    """

    judge: Judge
    tallies: Mapping[PatchSet, Tally] = field(default_factory=dict)
    trials: int = 0
    certifying: int = 0
    watching: int = 0
    searched: set[PatchSet] = field(default_factory=set)
    evidence: SearchEvidence = field(init=False)

    @property
    def builds(self) -> int:
        return len(self.tallies)

    def __post_init__(self) -> None:
        self.evidence = SearchEvidence(self.tallies, frozenset(self.tallies))

    def solve(self, asked: Problem, most: int = 2000) -> Done:
        """Answer until the search is done. Checks that no set is proposed that may not be."""
        while True:
            answer = propose(asked, self.evidence)
            if isinstance(answer, Done):
                return answer
            assert asked.combinations.valid(answer.chosen)
            assert asked.low <= answer.chosen <= asked.high
            self.evidence = self.evidence.after(answer.chosen, self.judge(answer.chosen))
            self.tallies = self.evidence.tallies
            self.trials += 1
            if answer.purpose == "certificate":
                self.certifying += 1
            elif answer.purpose == "watch":
                self.watching += 1
            else:
                self.searched.add(answer.chosen)
            assert self.trials < most


def all_of(culprits: PatchSet) -> Judge:
    """Return the judge of a failure that shows exactly when all CULPRITS are in."""
    return lambda chosen: BAD if culprits <= chosen else GOOD


def sometimes(culprits: PatchSet, rng: random.Random, rate: float, stray: float = 0.0) -> Judge:
    """Return the judge of a failure that shows at RATE when all CULPRITS are in, and at STRAY otherwise."""
    return lambda chosen: BAD if rng.random() < (rate if culprits <= chosen else stray) else GOOD


def one_bad_artifact(culprit: str) -> Judge:
    """Return the judge of a failure that the first of the two artifacts of each set with CULPRIT always shows."""
    tried = Counter[PatchSet]()

    def judge(chosen: PatchSet) -> Trial:
        number = tried[chosen] % 2
        tried[chosen] += 1
        return replace(BAD if number == 0 and culprit in chosen else GOOD, artifact=f"{set_hash(chosen)}-{number}")

    return judge


def start(
    combinations: Combinations, mode: Mode = "set", find: Find = "break", *, flaky: bool = False, repeats: int = 1
) -> BisectStart:
    """Return the first record of a journal that searches all of COMBINATIONS."""
    return BisectStart(
        schema=records.SCHEMA,
        image="cpu",
        profile="tiny-eager",
        series="v1",
        inputs="ab" * 32,
        order=combinations.order,
        requires={one: combinations.ordered(needed) for one, needed in combinations.requires.items()},
        conflicts={one: combinations.ordered(others) for one, others in combinations.conflicts.items()},
        low=(),
        high=combinations.order,
        find=find,
        mode=mode,
        confidence=0.99,
        repeats=repeats,
        patience=40,
        flaky=flaky,
        build_price=1.0,
        probe=BisectProbe(("./probe.sh",), "cd" * 32),
        host="cpu-x86_64",
        model=records.MODEL,
    )


@dataclass
class SimulatedBench:
    """A bench that builds at once and tries by JUDGE. Sets in BROKEN do not build."""

    judge: Judge
    broken: frozenset[PatchSet] = frozenset()
    tries: list[PatchSet] = field(default_factory=list)
    builds: list[PatchSet] = field(default_factory=list)

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        self.builds.append(frozenset(chosen))
        if frozenset(chosen) in self.broken:
            return Trial("untestable", stage="build")
        name = set_hash(chosen)
        return Built(chosen, f"tree-{name}", f"build-{name}", f"image-{name}", 1.0)

    def built(self, chosen: tuple[str, ...]) -> Built:
        made = self.build(chosen)
        assert isinstance(made, Built)
        return made

    def serve(self, built: Built, ready: Callable[[str, str], None]) -> None:
        """Say at once that BUILT is ready, and that it was stopped."""
        ready(f"nvllm-look-{set_hash(built.chosen)}", "http://127.0.0.1:8000")

    def trial(self, built: Built) -> Trial:
        self.tries.append(frozenset(built.chosen))
        return self.judge(frozenset(built.chosen))

    def clear(self) -> None:
        """Nothing runs on: a simulated trial is over before anybody can interrupt it."""
