"""The state is a fold over the records: what counts, what is withdrawn, what is shared."""

from __future__ import annotations

import random

from nvllm.bisect import history
from nvllm.bisect.driver import drive
from nvllm.bisect.history import Back, Built, End, Record, Skip, Tried
from nvllm.bisect.journal import MemoryLog
from nvllm.bisect.search import Done
from nvllm.bisect.verdict import Outcome, Tally
from support.bisect_world import SimulatedBench, all_of, free, layered, start


def tried(*chosen: str, outcome: Outcome = "bad") -> Tried:
    return Tried(chosen, outcome, "", None, "", 1.0, recalled=False, reason="")


def built(*chosen: str, tree: str) -> Built:
    return Built(chosen, tree, f"build-{chosen}", "image", 1.0)


def test_a_withdrawn_set_is_as_if_it_had_never_been_tried() -> None:
    first = start(free(3))
    kept: list[Record] = [first, tried("p01"), tried("p02", outcome="good")]
    withdrawn = history.fold([*kept, tried("p03"), Skip(("p03",)), End(("p03",), True, True), Back(("p03",))])
    assert withdrawn.evidence == history.fold(kept).evidence
    assert withdrawn.end is None


def test_what_is_skipped_counts_as_untestable_whatever_was_seen() -> None:
    state = history.fold([start(free(3)), tried("p01"), Skip(("p01",))])
    assert state.evidence.tally(frozenset({"p01"})) == Tally(untestable=1, stage="skipped")


def test_sets_of_one_tree_share_their_trials() -> None:
    same = [built("p01", tree="t"), built("p01", "p02", tree="t"), built("p03", tree="u")]
    state = history.fold([start(free(3)), *same, tried("p01"), tried("p01", "p02"), tried("p03", outcome="good")])
    assert state.evidence.tally(frozenset({"p01"})) == state.evidence.tally(frozenset({"p01", "p02"})) == Tally(bad=2)
    assert state.evidence.tally(frozenset({"p03"})) == Tally(good=1)


def test_a_tree_that_was_tried_needs_no_trial() -> None:
    """p02 changes nothing, so every set with it is the tree of the set without it."""

    class OneTree(SimulatedBench):
        def build(self, chosen: tuple[str, ...]) -> Built:
            made = super().build(chosen)
            assert isinstance(made, Built)
            return Built(chosen, "-".join(one for one in chosen if one != "p02"), made.build_hash, made.image, 1.0)

    bench = OneTree(all_of(frozenset({"p01"})))
    done = drive(MemoryLog.of(start(free(2))), bench)
    assert isinstance(done, Done)
    assert done.culprits == ("p01",)
    assert len(bench.builds) == 3
    assert len(bench.tries) == 2


def test_the_problem_of_a_state_is_the_one_that_was_started() -> None:
    found = layered(6, random.Random(1), 0.4)
    asked = history.fold([start(found, "ordered", "fix")]).problem
    assert asked.combinations == found
    assert (asked.mode, asked.find, asked.items) == ("ordered", "fix", found.order)


def test_what_was_tried_last_is_the_last_of_what_counts() -> None:
    state = history.fold([start(free(3)), tried("p01"), tried("p02"), tried("p03"), tried("p02")])
    seen = []
    while state.last is not None:
        seen.append(state.last)
        state = state.after(Back(tuple(state.last)))
    assert seen == [{"p02"}, {"p03"}, {"p01"}]
