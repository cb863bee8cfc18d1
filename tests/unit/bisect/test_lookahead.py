"""Several machines: one asks for today's trial, more come to the same answer sooner, whatever is lost or slow."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.bisect.answer import NextTrial
from nvllm.bisect.lookahead import Slots, lookahead, to_begin
from nvllm.bisect.problem import Mode, Problem, SearchEvidence, Settings, Tally
from nvllm.bisect.search import propose
from support.bisect_machines import alike, search, straggling
from support.bisect_world import all_of, free, layered, problem, sometimes
from support.rows import each_row

MODES: st.SearchStrategy[Mode] = st.sampled_from(("ordered", "set"))


def steady(count: int, rng: random.Random, mode: Mode) -> Problem:
    return problem(layered(count, rng), mode, settings=Settings())


@given(st.integers(0, 10**6), st.integers(2, 12), MODES)
@settings(max_examples=15, deadline=None)
def test_one_machine_tries_what_the_search_asks_for(seed: int, count: int, mode: Mode) -> None:
    rng = random.Random(seed)
    asked = steady(count, rng, mode)
    cause, tallies = asked.combinations.closed(rng.sample(asked.items, 1)), dict[frozenset[str], Tally]()
    while isinstance(wanted := propose(asked, evidence := SearchEvidence(dict(tallies), tallies.keys())), NextTrial):
        assert lookahead(asked, evidence, Slots(1)) == to_begin(asked, evidence, (), Slots(1)) == [wanted]
        several = lookahead(asked, evidence, Slots(5))
        assert several[0] == wanted
        assert lookahead(asked, evidence, Slots(3)) == several[:3]
        assert all(asked.combinations.valid(one.chosen) for one in several)
        tallies[wanted.chosen] = tallies.get(wanted.chosen, Tally()).plus(all_of(cause)(wanted.chosen))


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12), MODES)
@settings(max_examples=15, deadline=None)
def test_any_number_of_machines_finds_the_same(seed: int, count: int, machines: int, mode: Mode) -> None:
    rng = random.Random(seed)
    asked = steady(count, rng, mode)
    cause = asked.combinations.closed(rng.sample(asked.items, 1))
    alone = search(asked, all_of(cause), 1)
    found = search(asked, all_of(cause), machines, straggling(rng), losses=0.1, rng=rng)
    assert (found.done.culprits, found.done.certified) == (alone.done.culprits, alone.done.certified)


def test_a_flaky_failure_is_found_on_several_machines() -> None:
    rng = random.Random(4)
    asked = problem(free(8), settings=Settings(flaky=True, max_trials=96))  # without a bound it takes the default's 400
    cause = frozenset({"p05"})
    found = search(asked, sometimes(cause, rng, 0.6), 8)
    assert frozenset(found.done.culprits) == cause
    assert found.long < found.trials / 4


@each_row(("machines", "most"), [(2, 0.6), (4, 0.35), (8, 0.22)])
def test_the_search_is_shorter_with_more_machines(machines: int, most: float) -> None:
    asked, judge = problem(free(16), settings=Settings()), all_of(frozenset({"p03", "p11"}))
    assert search(asked, judge, machines).long <= most * search(asked, judge, 1, alike).long


def test_both_ends_are_proved_at_once() -> None:
    asked = problem(free(8), settings=Settings())
    wanted = lookahead(asked, SearchEvidence({}), Slots(6))
    assert [one.purpose for one in wanted] == ["end"] * 6
    assert [one.chosen for one in wanted].count(asked.high) == 3


def test_what_is_under_way_is_not_sent_again() -> None:
    asked = replace(problem(free(8), settings=Settings()), mode="ordered")
    evidence = SearchEvidence({asked.high: Tally(bad=3), asked.low: Tally(good=3)})
    first, second, third = lookahead(asked, evidence, Slots(3))
    assert to_begin(asked, evidence, [first.chosen], Slots(3)) == [second, third]
    assert to_begin(asked, evidence, [first.chosen, frozenset({"p01", "p08"})], Slots(3)) == [second]
    assert to_begin(asked, evidence, [first.chosen, second.chosen, third.chosen], Slots(3)) == []
