"""The search on failures as people have them. `python -m benchmarks bisect` runs the same classes in full."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from nvllm.bisect.answer import Done
from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.problem import Mode, SearchEvidence, Settings, Tally
from nvllm.bisect.search import propose
from nvllm.trials.trial import Trial
from support.bisect_landscapes import (
    BROKEN,
    CHANGES,
    CONFIDENCES,
    CORRELATIONS,
    LANDSCAPES,
    Case,
    campaigns,
    cases,
    changing,
    untestable,
    weaker,
)
from support.bisect_world import BAD, FLAKY, GOOD, World, all_of, free, one_bad_artifact, problem, sometimes
from support.rows import each_row, longer

pytestmark = pytest.mark.thorough  # searches drawn at random


def test_a_case_depends_on_its_class_seed_and_number_only() -> None:
    one, other = ([case.cause for case in cases("required", 5, seed)] for seed in (3, 3))
    assert one == other != [case.cause for case in cases("required", 5, 4)]


def test_a_set_that_fails_to_boot_now_and_then_is_tried_again() -> None:
    found = list(campaigns("transient", 100))
    assert sum(one.certified and one.right for one in found) >= 95
    assert not any(one.certified and not one.right for one in found)


def test_what_comes_along_is_no_culprit() -> None:
    for one in campaigns("required", 60):
        assert one.done is not None
        assert one.certified
        assert one.right
        found = one.case.problem.combinations
        assert one.done.whole == found.closed(one.case.cause)
        for name, by in one.done.along:
            assert by == tuple(top for top in one.done.culprits if name in found.closed([top]))


def test_a_second_cause_is_always_noticed_and_found_on_request() -> None:
    for case in cases("disjoint", 60):
        done = World(case.judge).solve(replace(case.problem, further=True))
        assert done.certified
        assert done.rest is not None
        left = case.problem.combinations.without(case.problem.high, done.culprits)
        assert (done.rest.chosen, done.rest.verdict.outcome) == (left, "bad")
        assert {frozenset(one.culprits) for one in (done, *done.further)} == {case.cause, case.other}
        assert all(one.certified for one in done.further)
        likely = {name for name, chance in done.posterior if chance > 0.5}
        assert likely == case.cause | case.other


def test_a_single_cause_is_the_only_one() -> None:
    done = World(all_of(frozenset({"p03"}))).solve(replace(problem(free(8)), further=True))
    assert done.rest is not None
    assert (done.rest.verdict.outcome, done.rest.holds, done.further) == ("good", True, ())


def test_sets_that_cannot_be_tested_cost_few_builds_and_nothing_untrue_is_said() -> None:
    found = list(campaigns("untestable", 40))
    assert sum(one.builds for one in found) / len(found) <= 20
    for one in found:
        assert one.done is not None
        assert not any("monotone" in note for note in one.done.notes)
        assert not one.missed
        assert one.right or not one.certified


@pytest.mark.thorough
def test_false_alarms_make_nothing_wrong_that_is_certified() -> None:
    found = list(campaigns("false alarms", 6))
    assert sum(one.certified for one in found) >= 3
    assert not any(one.certified and not one.right for one in found)
    assert all(one.trials <= one.case.problem.settings.max_trials for one in found)


def test_a_set_that_two_lines_are_about_leaves_its_doubt_once() -> None:
    """Without its only culprit the set is the end that lacks the effect."""
    case = list(cases("false alarms", 3))[2]
    done = World(case.judge).solve(case.problem)
    assert len({line.chosen for line in done.certificate}) < len(done.certificate)
    assert (done.certified, frozenset(done.culprits)) == (True, case.cause)


@longer("confidence", CONFIDENCES[-1:], CONFIDENCES[:-1])
def test_without_a_culprit_hardly_anything_is_proved(confidence: float) -> None:
    found = list(campaigns(f"nothing {confidence:.2f}", 25))
    proved, allowed = sum(one.done is not None for one in found), (1 - confidence) * 25
    assert proved <= allowed + 2 * math.sqrt(allowed)
    assert sum(one.certified for one in found) <= allowed


@pytest.mark.thorough
def test_nothing_is_certified_if_each_build_always_fails_or_never_does() -> None:
    for one in campaigns("builds differ 1", 3):
        assert not one.certified
        assert one.done is None or (one.done.spread is not None and not one.done.spread.mixed) or one.done.stopped


@pytest.mark.thorough
def test_an_artifact_is_to_blame_where_each_always_fails_or_never_does() -> None:
    """Three artifacts of each set: unlike one, they tell a set of which some fail from a failure that is flaky."""
    differing = 0
    for one in campaigns("artifacts differ 1", 4):
        assert not one.certified
        differing += one.done is not None and one.done.spread is not None and one.done.spread.differs
        assert one.done is None or one.done.spread is None or one.done.spread.artifacts > one.done.spread.sets
    assert differing >= 2


def drawn(landscape: str, number: str) -> tuple[Case, Done]:
    """Return the case NUMBER, with its seed, of LANDSCAPE, and what its search came to."""
    case = LANDSCAPES[landscape](random.Random(f"{landscape}/{number}"))
    return case, World(case.judge).solve(case.problem)


def test_the_last_patch_is_certified_although_no_bigger_set_lacks_it() -> None:
    """Builds with it show that builds do not differ; 60 trials of the only build without it do not, as one failed."""
    case, done = drawn("builds differ 0", "tuneA/12")
    assert case.cause == {"p12"}
    assert (done.certified, done.culprits) == (True, ("p12",))
    assert done.certificate[1].verdict.tally.conclusive < 20


def test_a_set_that_failed_without_a_culprit_is_settled_before_anything_is_certified() -> None:
    """The build of p05 alone, which is the cause, seldom fails, so p03 seems to be needed too."""
    case, done = drawn("builds differ 0.4", "held out/129")
    assert case.cause == {"p05"}
    assert not done.certified


def test_artifacts_that_surely_differ_end_a_search_that_has_few_sets() -> None:
    """One of two artifacts of a set always fails. At 0.9 each took 96 to 171 trials, up to 108 of one good set."""
    modes: tuple[Mode, ...] = ("ordered", "set")
    for mode, count in itertools.product(modes, (2, 3, 4)):
        world = World(one_bad_artifact(f"p{count:02}"))
        done = world.solve(problem(free(count), mode, settings=replace(FLAKY, confidence=0.9)))
        assert done.stopped == "this differs from build to build"
        assert world.trials < 80


def test_nothing_is_certified_where_everything_without_it_fails_too() -> None:
    """Either a second cause or builds that differ: trials of these builds cannot tell."""
    rng = random.Random(5)
    done = World(lambda chosen: BAD if chosen & {"p02", "p06"} and rng.random() < 0.8 else GOOD).solve(
        problem(free(8), settings=FLAKY)
    )
    assert not done.certified
    assert any("there is another cause, or builds differ" in note for note in done.notes)


def test_a_flaky_certificate_rests_on_further_builds() -> None:
    """Both halves of the other patches, each with the culprits, and everything without one of several."""
    cause = frozenset({"p03", "p06"})
    world = World(sometimes(cause, random.Random(6), 0.8))
    done = world.solve(problem(free(8), settings=FLAKY))
    assert (done.certified, frozenset(done.culprits)) == (True, cause)
    order = frozenset(free(8).order)
    assert sum(cause < chosen < order for chosen in world.tallies) >= 2
    assert {order - {"p03"}, order - {"p06"}} <= world.tallies.keys()


def test_a_single_culprit_is_missing_in_further_builds_too() -> None:
    """One build without it may lack the effect by chance, although it has the cause."""
    cause = frozenset({"p03"})
    asked = problem(free(8), "ordered", settings=FLAKY)
    order = frozenset(free(8).order)
    for problem_asked, least in ((asked, 2), (replace(asked, settings=replace(FLAKY, same_bytes=True)), 0)):
        world = World(sometimes(cause, random.Random(6), 0.8))
        assert world.solve(problem_asked).certified
        nearly = [chosen for chosen in world.tallies if len(order - chosen) == 2 and not chosen & cause]
        assert len(nearly) >= least
        assert least or not nearly


def test_boots_of_the_same_bytes_need_no_proof_that_builds_are_alike() -> None:
    """A failure that is declared flaky, and shows in each boot with its cause: or each build is of its own kind."""
    cause = frozenset({"p03"})
    asked = problem(free(8), settings=FLAKY)
    same = replace(asked, settings=replace(FLAKY, same_bytes=True))
    differing, alike = (World(all_of(cause)).solve(one) for one in (asked, same))
    assert (differing.certified, alike.certified, frozenset(alike.culprits)) == (False, True, cause)
    assert alike.spread is not None
    assert (alike.spread.by_fact, alike.spread.high, alike.spread.chance) == (True, 0.0, 0.0)


def test_boots_of_the_same_bytes_that_fail_unevenly_are_no_certificate() -> None:
    """A patch that hides half of the failures: no artifact is to blame."""
    rng, notes = random.Random(8), list[str]()
    for _ in range(3):

        def judge(chosen: PatchSet) -> Trial:
            return BAD if "p02" in chosen and rng.random() < (0.3 if "p05" in chosen else 0.9) else GOOD

        done = World(judge).solve(problem(free(6), "ordered", settings=replace(FLAKY, same_bytes=True)))
        assert not done.certified or done.culprits == ("p02",)
        notes += done.notes
    assert "sets that should fail equally often do not: another patch changes how often it fails" in notes
    assert not any("builds" in note for note in notes)


@longer(("correlation", "count"), [], [(one, 25) for one in CORRELATIONS])
def test_a_certificate_survives_builds_that_differ(correlation: float, count: int) -> None:
    """At 0.99 one of 25 that is wrong is no proof of more; two are. `make bench-bisect` runs hundreds."""
    certified = [one for one in campaigns(f"builds differ {correlation:g}", count) if one.certified]
    assert sum(not one.right for one in certified) <= 1
    assert correlation > 0 or len(certified) >= 20


@pytest.mark.thorough
def test_a_pulse_of_stray_failures_ends_in_no_wrong_certificate() -> None:
    """It begins after the good end was proved, and hits the trials of one set."""
    case = changing("stray pulse")(random.Random("stray pulse/dev/75"))
    done = World(case.judge).solve(case.problem)
    assert not done.certified or frozenset(done.culprits) == case.cause


@longer(("change", "count"), [], [(one, 20) for one in CHANGES])
def test_rates_that_change_make_no_certificate_wrong(change: str, count: int) -> None:
    found = list(campaigns(change, count))
    assert not any(one.certified and not one.right for one in found)
    assert any(one.certified for one in found)


@longer(("rate", "number"), [(0.5, 10)], [(0.35, 0)])
def test_a_cause_that_shows_more_rarely_than_the_first_is_found_on_request(rate: float, number: int) -> None:
    """A set with it alone is neither bad nor good, and the watch of the bad end goes on beyond --max-trials."""
    case = weaker(rate)(random.Random(f"weaker cause {rate:g}/dev/{number}"))
    done = World(case.judge).solve(replace(case.problem, further=True))
    assert {frozenset(one.culprits) for one in (done, *done.further)} == {case.cause, case.other}


def test_everything_without_the_only_cause_is_tried_until_a_tenth_is_excluded() -> None:
    asked = replace(problem(free(6), "ordered", settings=FLAKY), further=True)
    done = World(sometimes(frozenset({"p03"}), random.Random(4), 0.8)).solve(asked)
    assert done.certified
    assert done.rest is not None
    assert (done.rest.verdict.tally, done.further) == (Tally(good=29), ())


@pytest.mark.thorough
def test_a_rate_that_falls_is_noticed_and_nothing_is_certified_wrongly() -> None:
    found = list(campaigns("drift", 10))
    assert not any(one.certified and not one.right for one in found)
    assert any(one.done is not None and "the failure rate has fallen" in one.done.stopped for one in found)


@longer("count", [10], [30])
def test_a_rate_that_falls_hides_nothing_that_was_learnt(count: int) -> None:
    """The search is stopped by a trial of the bad end; what the trials of other sets said is in the answer."""
    stopped = [one.done for one in campaigns("drift", count) if one.done is not None and "fallen" in one.done.stopped]
    learnt = [one for one in stopped if len({chance for _, chance in one.posterior}) > 1]
    assert len(learnt) >= 0.8 * len(stopped)
    assert any(len(one.culprits) < len(one.posterior) for one in learnt)
    assert not any(one.certified for one in stopped)


def test_a_limit_that_a_due_watch_reaches_hides_nothing_either() -> None:
    asked = problem(free(12), "ordered", settings=FLAKY)
    for most in range(20, 60, 4):
        limited = replace(asked, settings=replace(asked.settings, max_trials=most))
        done = World(sometimes(frozenset({"p05"}), random.Random(3), 0.5)).solve(limited)
        assert len({chance for _, chance in done.posterior}) > 1, most


@longer("confidence", [], [0.8, 0.95])
def test_an_answer_is_right_as_often_as_it_says(confidence: float) -> None:
    certified = [one for one in campaigns(f"calibration {confidence:.2f}", 20) if one.certified]
    assert len(certified) >= 14
    assert sum(one.right for one in certified) / len(certified) >= confidence - 0.03


def test_a_conclusive_trial_is_never_thrown_away() -> None:
    """p01 and p02 once failed; after that the set cannot be tested any more."""
    asked = problem(free(4), "ordered")
    ends = {asked.low: Tally(good=1), asked.high: Tally(bad=1)}
    seen = Tally(bad=1).plus(BROKEN)
    found = propose(asked, SearchEvidence({**ends, frozenset({"p01", "p02"}): seen}))
    assert not isinstance(found, Done)
    assert found.chosen == {"p01"}  # it is below the set that failed


def test_the_bad_end_is_tried_again_during_a_flaky_search() -> None:
    asked = problem(free(12), "ordered", settings=FLAKY)
    world = World(sometimes(frozenset({"p05"}), random.Random(3), 0.5))
    done = world.solve(asked)
    assert done.certified
    assert world.watching >= 3


@each_row("mode", ["ordered", "set"])
def test_a_limit_of_trials_ends_the_search_with_the_best_answer(mode: str) -> None:
    settings = Settings(max_trials=9)
    asked = problem(free(8), "ordered" if mode == "ordered" else "set", settings=settings)
    world = World(all_of(frozenset({"p05"})))
    done = world.solve(asked)
    assert world.trials == 9
    assert (done.certified, done.exact) == (False, False)
    assert done.stopped == "the limit of 9 trials is reached (--max-trials)"
    assert "p05" in done.culprits
    assert len(done.culprits) < 8


def test_a_limit_of_hours_counts_what_builds_and_trials_took() -> None:
    asked = problem(free(8), settings=Settings(max_hours=2))
    assert not isinstance(propose(asked, SearchEvidence({}, spent=7199)), Done)
    done = propose(asked, SearchEvidence({}, spent=7200))
    assert isinstance(done, Done)
    assert done.stopped == "the limit of 2 hours of builds and trials is reached (--max-hours)"
    assert done.culprits == asked.items


def test_a_transition_is_called_the_first_only_if_every_shorter_prefix_was_tried() -> None:
    first = World(all_of(frozenset({"p01"}))).solve(problem(free(8), "ordered"))
    assert first.first
    later = World(all_of(frozenset({"p06"}))).solve(problem(free(8), "ordered"))
    assert not later.first


def test_untestable_sets_that_hide_a_member_are_said_to() -> None:
    """Without p02 nothing builds, so nobody can say whether p02 is needed."""

    def judge(chosen: PatchSet) -> Trial:
        if chosen and "p02" not in chosen:
            return BROKEN
        return BAD if "p05" in chosen else GOOD

    done = World(judge).solve(problem(free(8)))
    assert not done.certified
    assert "p05" in done.culprits
    assert any(note.startswith("the set without it cannot be tested, so it may not be needed: ") for note in done.notes)


def test_an_untestable_case_is_monotone() -> None:
    case = untestable(random.Random(5))
    assert case.judge(case.problem.high).outcome == "bad"
    assert case.judge(case.problem.low).outcome == "good"
