"""The state of a bisect, a fold over its records: what counts, what is withdrawn, what is shared."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect.answer import Done
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.problem import Tally
from nvllm.bisect.records import Back, Corrected, End, JournalRecord, Kept, Limits, Skip, Tried, Withdrawn, fold
from nvllm.trials.trial import BisectProbe, Built, TrialOutcome, TrialStage
from support.bisect_world import SimulatedBench, all_of, free, layered, start
from support.rows import each_row


def tried(*chosen: str, outcome: TrialOutcome = "bad") -> Tried:
    return Tried(chosen, outcome, "", None, "", 1.0, recalled=False, reason="")


def built(*chosen: str, tree: str) -> Built:
    return Built(chosen, tree, f"build-{chosen}", "image", 1.0)


def test_a_withdrawn_set_is_as_if_it_had_never_been_tried() -> None:
    first = start(free(3))
    kept: list[JournalRecord] = [first, tried("p01"), tried("p02", outcome="good")]
    withdrawn = fold([*kept, tried("p03"), Skip(("p03",)), End(("p03",), True, True), Back(("p03",))])
    assert replace(withdrawn.evidence, spent=2.0) == fold(kept).evidence
    assert withdrawn.end is None


def test_what_is_skipped_counts_as_untestable_whatever_was_seen() -> None:
    state = fold([start(free(3)), tried("p01"), Skip(("p01",))])
    assert state.evidence.tally(frozenset({"p01"})) == Tally(untestable=1, stage="skipped")


def test_the_history_has_what_counts_in_its_order() -> None:
    lost = Tried(("p02",), "untestable", "", "boot", "", 1.0, recalled=False, reason="")
    trials = [tried("p01"), lost, tried("p02", outcome="good"), tried("p01"), tried("p03")]
    state = fold([start(free(3)), *trials, Back(("p03",))])
    first, second = frozenset({"p01"}), frozenset({"p02"})
    assert state.evidence.history == ((first, "x"), (second, "+"), (first, "x"))
    assert state.evidence.within(second).history == ((second, "+"),)


def test_sets_of_one_tree_share_their_trials() -> None:
    same = [built("p01", tree="t"), built("p01", "p02", tree="t"), built("p03", tree="u")]
    state = fold([start(free(3)), *same, tried("p01"), tried("p01", "p02"), tried("p03", outcome="good")])
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
    done = drive(Log.of(start(free(2))), bench)
    assert isinstance(done, Done)
    assert done.culprits == ("p01",)
    assert len(bench.builds) == 4  # both ends, p01, and everything without p01
    assert frozenset({"p01"}) not in bench.tries


def test_the_problem_of_a_state_is_the_one_that_was_started() -> None:
    found = layered(6, random.Random(1), 0.4)
    asked = fold([start(found, "ordered", "fix")]).problem
    assert asked.combinations == found
    assert (asked.mode, asked.find, asked.items) == ("ordered", "fix", found.order)


def test_what_was_tried_last_is_the_last_of_what_counts() -> None:
    state = fold([start(free(3)), tried("p01"), tried("p02"), tried("p03"), tried("p02")])
    seen = []
    while state.last is not None:
        seen.append(state.last)
        state = state.after(Back(tuple(state.last)))
    assert seen == [{"p02"}, {"p03"}, {"p01"}]


def test_back_drops_what_it_names_and_no_more() -> None:
    chosen = frozenset({"p01"})
    untestable = Tried(("p01",), "untestable", "", "boot", "", 1.0, recalled=False, reason="")
    kept: list[JournalRecord] = [
        start(free(3)),
        tried("p01"),
        untestable,
        tried("p02"),
        tried("p01", outcome="good"),
        Skip(("p01",)),
    ]
    state = fold(kept)

    def outcomes(what: Withdrawn) -> list[str]:
        after = state.after(Back(("p01",), what))
        assert after.tallies.get(chosen, Tally()).trials == len(after.trials.get(chosen, ()))
        assert after.sequence.count(chosen) == len(after.trials.get(chosen, ()))
        assert after.trials[frozenset({"p02"})] == state.trials[frozenset({"p02"})]
        assert (chosen in after.skipped) == (what not in ("all", "skip"))
        return [one.outcome for one in after.trials.get(chosen, ())]

    assert outcomes("last") == ["bad", "untestable"]
    assert outcomes("untestable") == ["bad", "good"]
    assert outcomes("skip") == ["bad", "untestable", "good"]
    assert outcomes("trials") == outcomes("all") == []


CORRECTED = BisectProbe(("./other.sh",), "ef" * 32)


@each_row(
    ("kept", "left"),
    [
        ("all", ["bad", "good", "harness", "boot", "apply", "by hand"]),
        ("good", ["good", "boot", "apply", "by hand"]),
        ("bad", ["bad", "boot", "apply", "by hand"]),
        ("none", ["boot", "apply", "by hand"]),
    ],
)
def test_a_corrected_probe_keeps_what_is_said_to_hold_and_what_no_probe_said(kept: Kept, left: list[str]) -> None:
    def untestable(stage: TrialStage) -> Tried:
        return replace(tried("p01"), outcome="untestable", stage=stage, reason=stage)

    trials = [
        replace(tried("p01"), reason="bad"),
        replace(tried("p01", outcome="good"), reason="good"),
        untestable("harness"),
        untestable("boot"),
        untestable("apply"),
        replace(tried("p01"), by_hand=True, reason="by hand"),
    ]
    state = fold([start(free(3)), *trials, End(("p01",), True, True), Corrected(CORRECTED, kept)])
    assert [one.reason for one in state.trials[frozenset({"p01"})]] == left
    assert (state.end, state.start.probe, state.corrections) == (None, CORRECTED, (Corrected(CORRECTED, kept),))


@given(
    st.lists(st.tuples(st.sampled_from(["p01", "p02", "p03"]), st.sampled_from(["good", "bad"])), max_size=12),
    st.sampled_from(["good", "bad", "all", "none"]),
)
def test_after_a_correction_the_state_is_that_of_the_trials_that_hold(
    seen: list[tuple[str, TrialOutcome]], kept: Kept
) -> None:
    trials = [tried(name, outcome=outcome) for name, outcome in seen]
    state = fold([start(free(3)), *trials, Corrected(CORRECTED, kept)])
    hold = [one for one in trials if kept in ("all", one.outcome)]
    wanted = fold([start(free(3)), *hold])
    assert (state.trials, state.sequence) == (wanted.trials, wanted.sequence)
    assert (state.tallies, state.evidence.tallies) == (wanted.tallies, wanted.evidence.tallies)
    assert state.spent == len(seen)  # it was spent all the same


def test_limits_can_be_changed() -> None:
    state = fold([start(free(3)), Limits(7, 1.5)])
    assert (state.problem.settings.max_trials, state.problem.settings.max_hours) == (7, 1.5)
    assert state.after(Limits(9, 0.0)).problem.settings.max_hours is None


def test_what_was_spent_counts_builds_and_new_trials() -> None:
    state = fold([start(free(3)), built("p01", tree="t"), tried("p01"), replace(tried("p01"), recalled=True)])
    assert (state.spent, state.evidence.trials) == (2.0, 3 - 1)
