"""The search: what is found, what it costs, and that it never claims what was not shown."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect import minimal, ordered, posterior, search, weighing
from nvllm.bisect.answer import Done, NextTrial
from nvllm.bisect.combinations import Combinations, PatchSet, split
from nvllm.bisect.problem import Find, Mode, SearchEvidence, Settings, Tally
from nvllm.bisect.search import beliefs, concluded, propose
from nvllm.core.refusal import Refused
from nvllm.trials.trial import Trial
from support.bisect_ddmin import ddmin
from support.bisect_world import (
    BAD,
    FLAKY,
    GOOD,
    ONCE,
    UNTESTABLE,
    World,
    all_of,
    free,
    layered,
    problem,
    sometimes,
)
from support.rows import each_row, longer

MODES: tuple[Mode, ...] = ("ordered", "set")

MOST = {
    (6, 1): 6, (8, 1): 6, (12, 1): 7, (16, 1): 9, (24, 1): 9,
    (6, 2): 9, (8, 2): 11, (12, 2): 11, (16, 2): 13, (24, 2): 14,
    (6, 3): 12, (8, 3): 13, (12, 3): 15, (16, 3): 16,
}  # fmt: skip
"""The most builds of a search for k culprits of n, both ends included, what only the certificate needs left out."""


def most_builds(count: int, culprits: int) -> int:
    """Return the price that is stated: beside the end that shows the effect, which is there before the search."""
    return math.ceil(culprits * math.log2(count)) + culprits + 3


@pytest.mark.parametrize(
    ("count", "culprits"),
    [pytest.param(*one, marks=[pytest.mark.thorough] if math.comb(*one) > 200 else []) for one in sorted(MOST)],
)
def test_interacting_culprits_are_found_at_the_stated_price_wherever_they_are(count: int, culprits: int) -> None:
    """Every choice of culprits, 1,427 cases in all."""
    found, most = free(count), 0
    for cause in itertools.combinations(found.order, culprits):
        world = World(all_of(frozenset(cause)))
        done = world.solve(problem(found))
        assert (done.culprits, done.certified) == (cause, True)
        most = max(most, len(world.searched))
        assert world.builds - len(world.searched) <= culprits + 1  # one set for each that is left out, and one for all
    assert most == MOST[count, culprits]
    assert most - 1 <= most_builds(count, culprits)


def test_patches_that_require_each_other_cost_no_more() -> None:
    """200 random series. What a culprit requires comes with it, so the culprits count that nothing else brings."""
    rng = random.Random(1)
    for _ in range(200):
        count = rng.randint(4, 16)
        found = layered(count, rng, rng.choice([0.05, 0.15, 0.3]))
        cause = found.closed(rng.sample(found.order, rng.randint(1, 3)))
        world = World(all_of(cause))
        done = world.solve(problem(found))
        assert (done.whole, done.certified) == (cause, True)
        brought = frozenset().union(*(found.closed({one}) - {one} for one in cause))
        assert len(world.searched) - 1 <= most_builds(count, len(cause - brought))


@given(st.integers(0, 10**6), st.integers(1, 14))
def test_a_monotone_failure_is_found_in_any_series(seed: int, count: int) -> None:
    rng = random.Random(seed)
    found = layered(count, rng, rng.choice([0, 0.1, 0.3]))
    cause = found.closed(rng.sample(found.order, rng.randint(1, min(3, count))))
    done = World(all_of(cause)).solve(problem(found))
    assert done.whole == cause
    assert done.certified
    assert done.exact
    roles = [line.role for line in done.certificate]
    assert roles == ["the set", *(f"without {one}" for one in done.culprits), "none of it"]


@given(st.integers(0, 10**6), st.integers(1, 14))
def test_the_smallest_set_that_repairs(seed: int, count: int) -> None:
    rng = random.Random(seed)
    found = layered(count, rng)
    repair = found.closed(rng.sample(found.order, rng.randint(1, min(2, count))))
    done = World(lambda chosen: GOOD if repair <= chosen else BAD).solve(problem(found, "set", "fix"))
    assert done.whole == repair
    assert done.certified
    assert [line.verdict.outcome for line in done.certificate] == ["good", *["bad"] * len(done.culprits), "bad"]


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_an_ordered_search_finds_the_patch_with_which_it_begins(seed: int, count: int) -> None:
    rng = random.Random(seed)
    found = layered(count, rng, 0.1)
    culprit = rng.choice(found.order)
    world = World(all_of(frozenset({culprit})))
    done = world.solve(problem(found, "ordered"))
    assert done.culprits == (culprit,)
    assert done.certified
    assert world.builds <= 3 + math.ceil(math.log2(max(count, 2)))  # both ends, and everything without the culprit


def random_answers(rng: random.Random, everything: PatchSet, untestable: float) -> dict[PatchSet, Trial]:
    class Answers(dict[PatchSet, Trial]):
        def __missing__(self, chosen: PatchSet) -> Trial:
            kind = UNTESTABLE if rng.random() < untestable else rng.choice([BAD, GOOD])
            return self.setdefault(chosen, kind)

    return Answers({everything: BAD, frozenset(): GOOD})


@given(st.integers(0, 10**6), st.integers(1, 10), st.sampled_from([0.0, 0.25, 0.6]))
def test_no_certificate_is_ever_wrong(seed: int, count: int, untestable: float) -> None:
    """Every set answers at random: nothing is monotone, and much of it cannot be tested."""
    rng = random.Random(seed)
    found = layered(count, rng)
    answers = random_answers(rng, frozenset(found.order), untestable)
    world = World(lambda chosen: answers[chosen])
    done = world.solve(problem(found))
    assert answers[done.whole] == BAD
    if done.certified:
        assert all(answers[found.without(done.whole, [one])] == GOOD for one in done.culprits)
    else:
        assert any(answers[found.without(done.whole, [one])] == UNTESTABLE for one in done.culprits)
        assert done.notes
    if not untestable:
        assert done.certified


@given(st.integers(0, 10**6), st.integers(2, 16))
def test_untestable_neighbours_widen_the_answer_and_never_move_it(seed: int, count: int) -> None:
    rng = random.Random(seed)
    found = free(count)
    culprit = rng.choice(found.order)
    answers: dict[PatchSet, Trial] = {}

    def judge(chosen: PatchSet) -> Trial:
        if chosen not in answers:
            inner = 0 < len(chosen) < count
            answers[chosen] = UNTESTABLE if inner and rng.random() < 0.25 else all_of(frozenset({culprit}))(chosen)
        return answers[chosen]

    done = World(judge).solve(problem(found, "ordered"))
    assert culprit in done.culprits
    assert done.exact == (len(done.culprits) == 1) == done.certified
    if not done.exact:
        assert done.notes[0] == "what lies between these patches cannot be tested: one of them is the culprit"
        first, last = found.order.index(done.culprits[0]), found.order.index(done.culprits[-1])
        for length in range(first + 1, last + 1):
            assert answers[frozenset(found.order[:length])] == UNTESTABLE


def test_a_flaky_search_that_takes_too_many_trials_ends_with_a_range() -> None:
    """Ten times the patience of one set is spent, and several patches are still likely."""
    rng, settings = random.Random(2), Settings(flaky=True, patience=2, rates=posterior.known(0.3, 0.02))
    asked = problem(free(16), "ordered", settings=settings)
    judge = sometimes(frozenset({"p05"}), rng, 0.3, 0.02)
    world = World(judge, {asked.low: Tally(good=60), asked.high: Tally(bad=20)})
    done = world.solve(asked)
    assert world.trials >= 20
    assert "p05" in done.culprits
    assert (done.exact, done.certified) == (False, False)
    assert done.notes[0] == "what lies between these patches took too many trials: one of them is the culprit"
    assert sum(chance for name, chance in done.posterior if name in done.culprits) >= 0.99


def test_a_patch_that_hides_the_failure_is_noticed() -> None:
    """p05 hides what p02 does alone, until p07 brings it out again: the whole set fails, and so does p02 alone."""

    def judge(chosen: PatchSet) -> Trial:
        return BAD if "p02" in chosen and ("p05" not in chosen or "p07" in chosen) else GOOD

    done = World(judge).solve(problem(free(8)))
    assert done.certified
    assert done.culprits == ("p02",)


@longer(("rate", "runs", "most_trials"), [(0.8, 200, 10.5)], [(0.4, 200, 31)])
def test_a_flaky_failure_is_found_with_the_stated_confidence(rate: float, runs: int, most_trials: float) -> None:
    """Rates known, as in the figures to beat: 31.2 trials and 5.1 builds beside the ends, at a rate of 0.4."""
    rng, found, right, trials, builds, certifying = random.Random(5), free(16), 0, 0, 0, 0
    settings = Settings(flaky=True, rates=posterior.known(rate, 0.02))
    for _ in range(runs):
        cause = frozenset({rng.choice(found.order)})
        asked = problem(found, "ordered", settings=settings)
        world = World(sometimes(cause, rng, rate, 0.02), {asked.low: Tally(good=60), asked.high: Tally(bad=20)})
        done = world.solve(asked)
        right += frozenset(done.culprits) == cause
        trials += world.trials
        certifying += world.certifying
        builds += world.builds - 2
        assert max(chance for _, chance in done.posterior) >= 0.99
        assert done.certified
    assert right / runs >= 0.985  # within the error of so many runs
    assert (trials - certifying) / runs <= most_trials
    assert certifying / runs <= 13  # nearly all for everything without the culprit
    assert builds / runs <= 7.5


@longer(("mode", "rate"), [("ordered", 0.7)], [("ordered", 0.4), ("set", 0.7), ("set", 0.4)])
def test_a_flaky_failure_that_nobody_declared_is_hardly_ever_certified_wrongly(mode: Mode, rate: float) -> None:
    """With one trial a line, one certificate in six was wrong at a rate of 0.7, and one in twenty at 0.4."""
    rng, found, wrong, certified = random.Random(8), free(8), 0, 0
    for _ in range(20):
        cause = frozenset(rng.sample(found.order, 1 if mode == "ordered" else 2))
        try:
            done = World(sometimes(cause, rng, rate)).solve(problem(found, mode, settings=Settings(repeats=3)))
        except Refused:  # the bad end passed three times: nothing was claimed
            continue
        certified += done.certified
        wrong += done.certified and frozenset(done.culprits) != cause
    assert certified > 5
    assert wrong <= 1


def test_each_line_of_a_certificate_is_tried_as_often_as_an_end() -> None:
    for mode in MODES:
        world = World(all_of(frozenset({"p02"})))
        done = world.solve(problem(free(8), mode, settings=Settings(repeats=4)))
        assert {line.verdict.tally.conclusive for line in done.certificate} == {4}
        assert min(tally.conclusive for tally in world.tallies.values()) == 1  # what only led there is not repeated


@each_row("mode", MODES)
def test_a_line_that_comes_out_differently_makes_the_failure_flaky(mode: Mode) -> None:
    """The set without p02 passes once, and fails when the certificate looks again."""
    asked, tries = problem(free(4), mode, settings=Settings(repeats=2)), dict[PatchSet, int]()

    def judge(chosen: PatchSet) -> Trial:
        tries[chosen] = tries.get(chosen, 0) + 1
        return BAD if "p02" in chosen or (chosen == {"p01"} and tries[chosen] == 2) else GOOD

    done = World(judge).solve(asked)
    assert done.culprits == ("p02",)
    assert done.flaky == (mode == "ordered")  # a set search has no line for p01 alone


@longer(("mode", "rate"), [("set", 0.4)], [("ordered", 0.2), ("ordered", 0.4)])
def test_a_flaky_certificate_keeps_the_confidence(mode: Mode, rate: float) -> None:
    found, certified, wrong, runs = free(8), 0, 0, 10
    for number in range(runs):
        cause = frozenset({found.order[number % 8]})
        try:
            done = World(sometimes(cause, random.Random(number), rate)).solve(problem(found, mode, settings=FLAKY))
        except Refused:  # the bad end failed too seldom
            continue
        sure = [line.verdict.confidence or 0.0 for line in done.certificate]
        for line, one in zip(done.certificate, sure, strict=True):
            assert not line.holds or one >= 0.99
        if done.certified:
            assert sum(1 - one for one in sure) <= 0.01 + 1e-9
            wrong += frozenset(done.culprits) != cause
        else:
            assert done.stopped or done.notes
        certified += done.certified
    assert certified >= runs / 2
    assert wrong <= 1  # one in a hundred may be


def test_an_end_of_a_certificate_is_weighed_without_what_it_says_of_itself() -> None:
    """Eleven passes of the good end make passing look usual there; counted twice they would prove themselves."""
    asked = problem(free(1), "ordered", settings=Settings(confidence=0.5, flaky=True, patience=11))
    in_turn = ((asked.high, "x"), (asked.low, "+")) * 9
    done = propose(
        asked, SearchEvidence({asked.low: Tally(good=11), asked.high: Tally(bad=9, good=2)}, history=in_turn)
    )
    assert isinstance(done, NextTrial)
    assert done.purpose == "watch"
    seen = {asked.low: Tally(good=11), asked.high: Tally(bad=5, order="xxxxx") + Tally(good=6) + Tally(bad=20)}
    done = propose(asked, SearchEvidence(seen, history=in_turn))
    assert isinstance(done, Done)
    (without,) = [line for line in done.certificate if line.role == "without it"]
    count = posterior.Count(0, 11)
    before = posterior.unknown()
    rates = before.after([before.if_holds(posterior.Count(25, 6))])
    assert without.verdict.confidence == pytest.approx(1 - posterior.shows(rates, count))


@longer(
    ("mode", "find", "culprits"),
    [("ordered", "break", 1), ("set", "fix", 2)],
    [("ordered", "fix", 1), ("set", "break", 1), ("set", "break", 2)],
)
def test_a_flaky_failure_of_unknown_rate_is_found(mode: Mode, find: Find, culprits: int) -> None:
    rng, found, right, certified, runs = random.Random(7), free(12), 0, 0, 12
    for _ in range(runs):
        cause = frozenset(rng.sample(found.order, culprits))
        breaks = sometimes(cause, rng, 0.5)

        def repairs(chosen: PatchSet, cause: PatchSet = cause) -> Trial:
            return BAD if not cause <= chosen and rng.random() < 0.5 else GOOD

        done = World(breaks if find == "break" else repairs).solve(problem(found, mode, find, FLAKY))
        assert done.flaky
        right += frozenset(done.culprits) == cause
        certified += done.certified
    assert right >= runs - 1  # one in a hundred may be wrong
    assert certified >= 0.8 * runs


def test_a_failure_is_taken_for_flaky_as_soon_as_one_set_is_good_and_bad() -> None:
    asked = problem(free(4), "ordered", settings=Settings(repeats=3))
    steady = SearchEvidence({asked.low: Tally(good=3), asked.high: Tally(bad=3)})
    flaky = SearchEvidence({asked.low: Tally(good=3), asked.high: Tally(bad=2, good=1)})
    first, second = propose(asked, steady), propose(asked, flaky)
    assert isinstance(first, NextTrial)
    assert first.chosen == {"p01", "p02"}
    assert isinstance(second, NextTrial)
    assert (second.chosen, second.reason) == (asked.high, "the bad end: 2 of 3 failures")


def test_both_ends_come_first() -> None:
    asked = problem(free(4), settings=Settings(repeats=2))
    evidence: dict[PatchSet, Tally] = {}
    order = []
    for _ in range(4):
        request = propose(asked, SearchEvidence(evidence))
        assert isinstance(request, NextTrial)
        order.append(len(request.chosen))
        evidence[request.chosen] = evidence.get(request.chosen, Tally()).plus(
            BAD if request.chosen == asked.high else GOOD
        )
    assert order == [4, 0, 4, 0]
    request = propose(asked, SearchEvidence(evidence))
    assert isinstance(request, NextTrial)
    assert 0 < len(request.chosen) < 4


def test_what_is_skipped_is_never_asked_for() -> None:
    asked = problem(free(4), "ordered")
    evidence = {asked.low: Tally(good=1), asked.high: Tally(bad=1)}
    first = propose(asked, SearchEvidence(evidence))
    assert isinstance(first, NextTrial)
    second = propose(asked, SearchEvidence({**evidence, first.chosen: Tally(untestable=1, stage="skipped")}))
    assert isinstance(second, NextTrial)
    assert second.chosen != first.chosen


def test_the_low_end_may_hold_patches() -> None:
    found = layered(8, random.Random(4), 0.2)
    low = found.closed({"p03"})
    asked = replace(problem(found), low=low)
    culprit = next(one for one in reversed(found.order) if one not in low)
    done = World(all_of(frozenset({culprit}))).solve(asked)
    assert done.culprits == (culprit,)
    assert done.whole == found.closed({culprit}) - low
    assert done.along == tuple((one, (culprit,)) for one in found.ordered(done.whole - {culprit}))
    assert all(low <= line.chosen for line in done.certificate)


def test_beliefs_are_there_at_any_time() -> None:
    asked = problem(free(4), "ordered", settings=FLAKY)
    assert dict(beliefs(asked, SearchEvidence({}))) == pytest.approx(dict.fromkeys(free(4).order, 0.25))
    seen = SearchEvidence({asked.high: Tally(bad=9), asked.low: Tally(good=9), frozenset({"p01", "p02"}): Tally(bad=1)})
    weights = dict(beliefs(asked, seen))
    assert weights["p01"] == weights["p02"] > 10 * weights["p03"]


@given(st.integers(0, 10**6), st.sampled_from(MODES), st.booleans())
def test_what_is_believed_at_the_end_is_what_was_found(seed: int, mode: Mode, flaky: bool) -> None:
    rng = random.Random(seed)
    found = layered(rng.randint(1, 8), rng)
    cause = found.closed({rng.choice(found.order)})
    judge = sometimes(cause, rng, 0.8) if flaky else all_of(cause)
    asked, world = problem(found, mode, settings=FLAKY if flaky else ONCE), World(judge)
    assert min(dict(beliefs(asked, SearchEvidence({}))).values()) > 0
    done = world.solve(asked)
    assert beliefs(asked, world.evidence) == done.posterior
    weights = dict(done.posterior)
    assert tuple(weights) == asked.items
    assert all(0 <= one <= 1 for one in weights.values())
    if mode == "ordered":
        assert sum(weights.values()) == pytest.approx(1)
    if done.certified:
        assert all(weights[one] >= 0.99 for one in done.culprits)
        others = [weights[one] for one in asked.items if one not in done.whole]
        assert all((0 < one < 0.01) if flaky else one == 0 for one in others)


def test_a_set_search_says_at_any_time_what_is_suspected() -> None:
    """Of p01 to p08 p03 and p06 act together; each verdict narrows where the last one that is needed can be."""
    asked = problem(free(8))
    evidence = {asked.high: Tally(bad=1), asked.low: Tally(good=1)}

    def seen(*lengths: int) -> dict[str, float]:
        prefixes = {frozenset(free(8).order[:one]): Tally(bad=1) if one >= 6 else Tally(good=1) for one in lengths}
        return dict(beliefs(asked, SearchEvidence({**evidence, **prefixes})))

    first = seen()
    assert first["p08"] == pytest.approx(1 / 8)
    assert first["p01"] == pytest.approx(1 / 8 + 7 / 8 / 8)  # the last one that is needed, or one before that
    behind = seen(4)
    assert behind["p05"] == pytest.approx(1 / 4 + 3 / 4 / 8)
    assert behind["p04"] == pytest.approx(1 / 8)
    between = seen(4, 6)
    assert between["p05"] == pytest.approx(1 / 2 + 1 / 2 / 8)
    assert between["p07"] == 0
    pinned = seen(4, 6, 5)
    assert (pinned["p06"], pinned["p07"], pinned["p08"]) == (1.0, 0.0, 0.0)


def test_a_set_is_concluded_when_its_trials_suffice() -> None:
    asked = problem(free(4), settings=ONCE)
    chosen = frozenset({"p01"})
    assert concluded(asked, SearchEvidence({}), chosen) is None
    verdict = concluded(asked, SearchEvidence({chosen: Tally(bad=1, kind="exit 3")}), chosen)
    assert str(verdict) == "bad (exit 3)"
    assert concluded(asked, SearchEvidence({asked.high: Tally(bad=1)}), asked.high) is None  # the other end is open


@given(st.integers(-1, 50), st.integers(2, 200))
def test_a_cut_is_as_good_as_any_on_average_and_at_worst(low: int, size: int) -> None:
    cut = split(low, low + size) - low
    levels = math.ceil(math.log2(size))
    for part in (cut, size - cut):
        assert 1 <= part <= 2 ** (levels - 1)
        assert part >= 2 ** (levels - 2)


def counted(found: Combinations, shows: Callable[[PatchSet], bool], tried: set[PatchSet]) -> Callable[[PatchSet], bool]:
    def ask(chosen: PatchSet) -> bool:
        assert found.valid(chosen)
        tried.add(chosen)
        return shows(chosen)

    return ask


@each_row("seed", range(100))
def test_whatever_the_effect_depends_on_nothing_can_go_from_the_result(seed: int) -> None:
    """The effect is a random one, so it is hardly ever monotone."""
    rng = random.Random(seed)
    found = layered(rng.randrange(2, 11), rng)
    everything = frozenset(found.order)
    answers: dict[PatchSet, bool] = {everything: True, frozenset(): False}

    def shows(chosen: PatchSet) -> bool:
        return answers.setdefault(chosen, rng.random() < 0.3)

    result = ddmin(found, everything, frozenset(), counted(found, shows, set()))
    assert answers[result]
    assert all(not shows(found.without(result, [one])) for one in result)


def test_the_base_stays_in_every_set() -> None:
    found = free(6)
    tried: set[PatchSet] = set()
    base = frozenset({"p02"})
    ask = counted(found, lambda chosen: {"p02", "p05"} <= chosen, tried)
    assert ddmin(found, frozenset(found.order), base, ask) == {"p02", "p05"}
    assert all(base <= chosen for chosen in tried)


def test_it_costs_about_what_is_known_of_ddmin() -> None:
    """16 patches, 2 culprits: 20.9 sets on average elsewhere, both ends included."""
    found, rng, costs = free(16), random.Random(3), []
    for _ in range(150):
        culprits = frozenset(rng.sample(found.order, 2))
        tried: set[PatchSet] = {frozenset(), frozenset(found.order)}
        ask = counted(found, culprits.issubset, tried)
        assert ddmin(found, frozenset(found.order), frozenset(), ask) == culprits
        costs.append(len(tried))
    assert 18 < sum(costs) / len(costs) < 24


def test_every_generator_of_a_search_is_run() -> None:
    """Python ignores a generator that nobody runs: without `yield from` a search would go on without the trial."""
    trees = [ast.parse(inspect.getsource(module)) for module in (search, weighing, minimal, ordered)]
    defined = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    asking = {node.name for node in defined if "Asking" in ast.unparse(node.returns or ast.Constant(None))}
    ignored = [
        ast.unparse(node)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr | ast.Assign | ast.Return)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).removeprefix("self.").removeprefix("search.") in asking
    ]
    assert ignored == []
