"""Failures as people have them, drawn at random by seed, and the simulated bisects that search for their causes.

Tests run a few of each class, `python -m benchmarks bisect` runs hundreds. A case depends on its class, the seed and
its number only, so every figure can be repeated.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from nvllm.bisect.answer import Done
from nvllm.bisect.combinations import PatchSet, set_hash
from nvllm.bisect.problem import Mode, Problem, Settings
from nvllm.core.refusal import Refused
from nvllm.trials.trial import Trial
from support.bisect_world import BAD, GOOD, Judge, World, all_of, free, layered, problem, sometimes

TRANSIENT = (Trial("untestable", "timeout", "boot"), Trial("untestable", "exit 125", "harness"))
BROKEN = Trial("untestable", "NV314", "build")


@dataclass(frozen=True, slots=True)
class Case:
    """A search, how its trials end, and the patches that really are the CAUSE; OTHER is a second cause, if any."""

    problem: Problem
    judge: Judge
    cause: PatchSet
    other: PatchSet = frozenset()

    def fails(self, chosen: PatchSet) -> bool:
        """Return whether CHOSEN contains a cause."""
        return self.cause <= chosen or (bool(self.other) and self.other <= chosen)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the search of CASE came to: DONE is None if an end was refused."""

    case: Case
    done: Done | None
    trials: int
    builds: int

    @property
    def certified(self) -> bool:
        return self.done is not None and self.done.certified

    @property
    def right(self) -> bool:
        """Whether the answer is one cause of the case, and nothing else."""
        return self.done is not None and frozenset(self.done.culprits) in (self.case.cause, self.case.other)

    @property
    def missed(self) -> bool:
        """Whether the answer, which may be a range or too big, lacks a patch of every cause."""
        named = frozenset(self.done.culprits) if self.done is not None else frozenset()
        return self.done is not None and not self.case.fails(self.case.problem.combinations.closed(named))


def transient(rng: random.Random) -> Case:
    """Every tenth trial fails to boot, or in the probe, whatever its patches are."""
    cause, asked = _some(rng, 1, 2)
    steady = all_of(cause)
    return Case(asked, lambda chosen: rng.choice(TRANSIENT) if rng.random() < 0.1 else steady(chosen), cause)


def required(rng: random.Random) -> Case:
    """Patches require others. The failure needs one or two that are drawn; what these require comes along."""
    found = layered(rng.randint(6, 16), rng, rng.choice([0.1, 0.2, 0.3]))
    drawn = frozenset(rng.sample(found.order, rng.randint(1, 2)))
    cause = frozenset(one for one in drawn if not any(one in found.closed([other]) - {other} for other in drawn))
    return Case(problem(found, settings=Settings()), all_of(cause), cause)


def disjoint(rng: random.Random) -> Case:
    """Either of two causes, which share no patch, is enough."""
    found = free(rng.randint(6, 16))
    drawn = rng.sample(found.order, rng.randint(2, 4))
    cut = rng.randint(1, len(drawn) - 1)
    cause, other = frozenset(drawn[:cut]), frozenset(drawn[cut:])
    return Case(
        problem(found, settings=Settings()),
        lambda chosen: BAD if cause <= chosen or other <= chosen else GOOD,
        cause,
        other,
    )


def untestable(rng: random.Random) -> Case:
    """One set in five does not build; the ends do. The failure is monotone."""
    cause, asked = _some(rng, 1, 3, least=16, most_patches=24)
    steady, broken = all_of(cause), dict[PatchSet, bool]()

    def judge(chosen: PatchSet) -> Trial:
        inner = chosen not in (asked.low, asked.high)
        return BROKEN if broken.setdefault(chosen, inner and rng.random() < 0.2) else steady(chosen)

    return Case(asked, judge, cause)


def false_alarms(rng: random.Random) -> Case:
    """The failure shows sometimes, also where its cause is absent, and neither rate is known."""
    cause, asked = _some(rng, 1, 3, settings=Settings(flaky=True))
    return Case(asked, sometimes(cause, rng, rng.choice([0.4, 0.6, 0.8]), rng.choice([0.05, 0.1, 0.15])), cause)


def nothing(confidence: float) -> Callable[[random.Random], Case]:
    """Return the landscape without a culprit, searched at CONFIDENCE: every set fails at one rate."""

    def make(rng: random.Random) -> Case:
        rate = rng.choice([0.05, 0.1, 0.3, 0.5, 0.7])
        asked = problem(free(8), "ordered", settings=Settings(confidence=confidence, flaky=True))
        return Case(asked, lambda _: BAD if rng.random() < rate else GOOD, frozenset({"none of them"}))

    return make


def drift(rng: random.Random) -> Case:
    """The failure rate falls evenly from 0.6 to 0.05 over 40 to 160 trials, and stays there."""
    found = free(rng.randint(8, 16))
    mode = rng.choice(["ordered", "set"])
    cause = frozenset(rng.sample(found.order, 1 if mode == "ordered" else rng.randint(1, 2)))
    asked = problem(found, "ordered" if mode == "ordered" else "set", settings=Settings(flaky=True))
    tried, over = 0, rng.choice([40, 80, 160])

    def judge(chosen: PatchSet) -> Trial:
        nonlocal tried
        tried += 1
        rate = max(0.05, 0.6 - 0.55 * tried / over)
        return BAD if cause <= chosen and rng.random() < rate else GOOD

    return Case(asked, judge, cause)


def calibration(confidence: float) -> Callable[[random.Random], Case]:
    """Return the landscape of one flaky culprit, searched at CONFIDENCE without knowing a rate."""

    def make(rng: random.Random) -> Case:
        found = free(rng.randint(6, 16))
        cause = frozenset({rng.choice(found.order)})
        asked = problem(found, "ordered", settings=Settings(confidence=confidence, flaky=True))
        rate, stray = rng.choice([0.3, 0.5, 0.7, 0.9]), rng.choice([0.0, 0.02, 0.05])
        return Case(asked, sometimes(cause, rng, rate, stray), cause)

    return make


FLAKY_RATES = ((0.5, 0.0), (0.5, 0.05), (0.8, 0.02))
"""Failure rates with the cause, and without it."""

SHAPES: tuple[tuple[Mode, int], ...] = (("ordered", 1), ("set", 1), ("set", 2))
"""Modes of a search, and culprits."""


def drawn_rate(rng: random.Random, middle: float, correlation: float) -> float:
    """Return the failure rate of one build, drawn from a beta distribution around MIDDLE.

    CORRELATION is the intraclass correlation of the builds: at 0 all have the rate MIDDLE, at 1 each always fails or
    never does.
    """
    if correlation == 0 or middle in (0, 1):
        return middle
    if correlation == 1:
        return float(rng.random() < middle)
    size = (1 - correlation) / correlation
    return rng.betavariate(middle * size, (1 - middle) * size)


def builds_differ(correlation: float) -> Callable[[random.Random], Case]:
    """Return the landscape of 12 patches whose builds differ by CORRELATION: each set keeps the rate that it draws."""

    def make(rng: random.Random) -> Case:
        (mode, culprits), (rate, stray) = rng.choice(SHAPES), rng.choice(FLAKY_RATES)
        carried = free(12)
        cause = frozenset(rng.sample(carried.order, culprits))
        drawn: dict[PatchSet, float] = {}

        def judge(chosen: PatchSet) -> Trial:
            if chosen not in drawn:
                drawn[chosen] = drawn_rate(rng, rate if cause <= chosen else stray, correlation)
            return BAD if rng.random() < drawn[chosen] else GOOD

        return Case(problem(carried, mode, settings=Settings(flaky=True)), judge, cause)

    return make


SEVERAL = 3
"""Artifacts of each set, where a set has several."""


def artifacts_differ(correlation: float) -> Callable[[random.Random], Case]:
    """Return the landscape of `builds_differ`, where a set has SEVERAL artifacts, each with the rate that it draws."""

    def make(rng: random.Random) -> Case:
        (mode, culprits), (rate, stray) = rng.choice(SHAPES), rng.choice(FLAKY_RATES)
        carried = free(12)
        cause = frozenset(rng.sample(carried.order, culprits))
        drawn: dict[tuple[PatchSet, int], float] = {}
        tried = Counter[PatchSet]()

        def judge(chosen: PatchSet) -> Trial:
            artifact = chosen, tried[chosen] % SEVERAL
            tried[chosen] += 1
            if artifact not in drawn:
                drawn[artifact] = drawn_rate(rng, rate if cause <= chosen else stray, correlation)
            loaded = f"{set_hash(chosen)}-{artifact[1]}"
            return replace(BAD if rng.random() < drawn[artifact] else GOOD, artifact=loaded)

        return Case(problem(carried, mode, settings=Settings(flaky=True)), judge, cause)

    return make


def sets_differ(correlation: float) -> Callable[[random.Random], Case]:
    """Return the landscape of `builds_differ` where a set has SEVERAL artifacts, and all of a set have its rate."""

    def make(rng: random.Random) -> Case:
        case, tried = builds_differ(correlation)(rng), Counter[PatchSet]()

        def judge(chosen: PatchSet) -> Trial:
            tried[chosen] += 1
            return replace(case.judge(chosen), artifact=f"{set_hash(chosen)}-{tried[chosen] % SEVERAL}")

        return replace(case, judge=judge)

    return make


def builds_cannot_differ(rng: random.Random) -> Case:
    """Return a case of equal builds, of a search that knows by fact that they are: all boots run the same bytes."""
    case = builds_differ(0.0)(rng)
    settings = replace(case.problem.settings, same_bytes=True)
    return replace(case, problem=replace(case.problem, settings=settings))


def changing(name: str) -> Callable[[random.Random], Case]:
    """Return the landscape NAME of 12 patches, whose failure rates change 15 to 100 trials after the start.

    ``stray pulse``: for 5 to 80 trials any set fails besides; ``stray step``: so it stays. ``masked pulse``: for as
    long no set fails; ``fallen step``: from then on the cause shows at most half as often.
    """

    def make(rng: random.Random) -> Case:
        (mode, culprits), (rate, stray) = rng.choice(SHAPES), rng.choice(FLAKY_RATES)
        carried = free(12)
        cause = frozenset(rng.sample(carried.order, culprits))
        begins, lasts = rng.randint(15, 100), rng.choice([5, 10, 20, 40, 80])
        besides, share = rng.choice([0.3, 0.6, 1.0]), rng.choice([0.1, 0.25, 0.5])
        tried = 0

        def judge(chosen: PatchSet) -> Trial:
            nonlocal tried
            tried += 1
            now = rate if cause <= chosen else stray
            changed = tried > begins and (name.endswith("step") or tried <= begins + lasts)
            if changed and name.startswith("stray"):
                now += besides - now * besides
            elif changed:
                now *= share if name == "fallen step" else 0.0
            return BAD if rng.random() < now else GOOD

        return Case(problem(carried, mode, settings=Settings(flaky=True)), judge, cause)

    return make


CHANGES = ("stray pulse", "stray step", "masked pulse", "fallen step")


def weaker(rate: float) -> Callable[[random.Random], Case]:
    """Return the landscape of 12 patches, one of which breaks nine of ten boots, and another one RATE of them."""

    def make(rng: random.Random) -> Case:
        carried = free(12)
        first, second = rng.sample(carried.order, 2)
        mode: Mode = rng.choice(("ordered", "set"))

        def judge(chosen: PatchSet) -> Trial:
            failed = (first in chosen and rng.random() < 0.9) or (second in chosen and rng.random() < rate)
            return BAD if failed else GOOD

        asked = problem(carried, mode, settings=Settings(flaky=True))
        return Case(asked, judge, frozenset({first}), frozenset({second}))

    return make


WEAKER = (0.2, 0.35, 0.5, 0.7)

CORRELATIONS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)

APART = (0.0, 0.1, 0.4, 1.0)
"""The correlations where a set has several artifacts."""

CONFIDENCES = (0.80, 0.90, 0.95, 0.99)

LANDSCAPES: Mapping[str, Callable[[random.Random], Case]] = {
    "transient": transient,
    "required": required,
    "disjoint": disjoint,
    "untestable": untestable,
    "false alarms": false_alarms,
    "drift": drift,
    "builds cannot differ": builds_cannot_differ,
    **{f"builds differ {one:g}": builds_differ(one) for one in CORRELATIONS},
    **{f"artifacts differ {one:g}": artifacts_differ(one) for one in APART},
    **{f"sets differ {one:g}": sets_differ(one) for one in APART},
    **{name: changing(name) for name in CHANGES},
    **{f"weaker cause {one:g}": weaker(one) for one in WEAKER},
    **{f"nothing {one:.2f}": nothing(one) for one in CONFIDENCES},
    **{f"calibration {one:.2f}": calibration(one) for one in CONFIDENCES},
}


def cases(name: str, count: int, seed: int = 1) -> Iterator[Case]:
    """Yield COUNT cases of the class NAME."""
    for number in range(count):
        yield LANDSCAPES[name](random.Random(f"{name}/{seed}/{number}"))


def campaigns(name: str, count: int, seed: int = 1) -> Iterator[Outcome]:
    """Search COUNT cases of the class NAME, and yield what each came to."""
    for case in cases(name, count, seed):
        world = World(case.judge)
        done = None
        with contextlib.suppress(Refused):
            done = world.solve(case.problem, most=5000)
        yield Outcome(case, done, world.trials, world.builds)


def _some(
    rng: random.Random,
    fewest: int,
    most: int,
    *,
    least: int = 6,
    most_patches: int = 16,
    settings: Settings | None = None,
) -> tuple[PatchSet, Problem]:
    """Return FEWEST to MOST culprits of LEAST to MOST_PATCHES patches, and the set search for them."""
    found = free(rng.randint(least, most_patches))
    cause = frozenset(rng.sample(found.order, rng.randint(fewest, most)))
    return cause, problem(found, settings=settings or Settings())
