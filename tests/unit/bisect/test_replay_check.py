"""Repeating the decisions of a journal: whatever a search wrote is accepted, and nothing that it would not have."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.bisect import replay_check
from nvllm.bisect.answer import Done, NextTrial
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.records import Back, BisectStart, End, JournalEntry, Judged, Skip, Tried
from nvllm.core.refusal import Refused
from nvllm.trials.trial import Built, Trial
from support.bisect_world import BAD, GOOD, SimulatedBench, all_of, free, layered, sometimes, start


def finished(begun: BisectStart, bench: SimulatedBench, jobs: int = 1) -> Log:
    log = Log.of(begun)
    drive(log, bench, jobs=jobs)
    return log


def differing(entries: list[JournalEntry]) -> list[tuple[str, str, str]]:
    with pytest.raises(Refused) as caught:
        replay_check.repeat(entries, "j")
    assert {one.code for one in caught.value.refusals} == {"NV804"}
    return [(one.where, one.expected, one.found) for one in caught.value.refusals]


@pytest.mark.thorough
@settings(deadline=None, max_examples=5)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 5), st.sampled_from(["ordered", "set"]), st.booleans())
def test_whatever_a_search_wrote_is_accepted(seed: int, count: int, jobs: int, mode: str, flaky: bool) -> None:
    rng = random.Random(seed)
    found = layered(count, rng)
    cause = found.closed(rng.sample(found.order, rng.randint(1, 2) if mode == "set" else 1))
    judge = sometimes(cause, rng, 0.7) if flaky else all_of(cause)
    broken = frozenset(found.closed(found.order[:length]) for length in range(1, count - 1) if rng.random() < 0.2)
    begun = start(found, "set" if mode == "set" else "ordered", flaky=flaky, repeats=rng.randint(1, 3))
    log = Log.of(begun)
    with contextlib.suppress(Refused):  # a flaky end may fail too seldom, which is a decision as well
        drive(log, SimulatedBench(judge, broken), jobs=jobs)
    replay_check.repeat(log.entries, "j")
    replay_check.repeat(log.entries[: rng.randint(1, len(log.entries))], "j")


def test_it_comes_to_what_the_search_came_to() -> None:
    log = finished(start(free(8)), SimulatedBench(all_of(frozenset({"p03", "p06"}))))
    answer = replay_check.repeat(log.entries, "j")
    assert isinstance(answer, Done)
    assert answer.culprits == ("p03", "p06")
    assert isinstance(replay_check.repeat(log.entries[:3], "j"), NextTrial)
    wrong = Log.of(start(free(4)))
    with pytest.raises(Refused):
        drive(wrong, SimulatedBench(lambda _: GOOD))
    assert isinstance(replay_check.repeat(wrong.entries, "j"), Refused)


def test_what_a_user_decided_is_taken_as_it_is() -> None:
    judge = all_of(frozenset({"p03"}))
    log = finished(start(free(4), "ordered"), SimulatedBench(judge))
    log.append(Back(("p01", "p02")))
    drive(log, SimulatedBench(judge))
    log.append(Skip(("p01", "p02")))
    drive(log, SimulatedBench(judge))
    assert sum(isinstance(entry.record, End) for entry in log.entries) == 3
    replay_check.repeat(log.entries, "j")


def test_a_trial_that_nothing_asked_for() -> None:
    log = finished(start(free(8), "ordered"), SimulatedBench(all_of(frozenset({"p03"}))))
    entries = list(log.entries)
    at = next(n for n, one in enumerate(entries) if isinstance(one.record, Judged))
    stray = Tried(("p02", "p07"), "good", "", None, "", 1.0, recalled=False, reason="")
    found = differing([*entries[:at], JournalEntry(0.0, stray), *entries[at:]])
    assert [where for where, _, _ in found] == [f"j:{at + 1}"]
    assert found[0][1].startswith("a trial of ")
    assert found[0][2].endswith(" (p02, p07)")
    # What was ahead of a trial is no decision any more when the end is written.
    late = next(one.record for one in entries if isinstance(one.record, Tried))
    ((where, expected, _),) = differing([*entries, JournalEntry(0.0, late)])
    assert (where, expected) == (f"j:{len(entries) + 1}", "no further trial")


def test_a_verdict_that_its_trials_do_not_allow() -> None:
    log = finished(start(free(4), "ordered"), SimulatedBench(all_of(frozenset({"p03"}))))
    entries = list(log.entries)
    at = next(n for n, one in enumerate(entries) if isinstance(one.record, Judged))
    judged = entries[at].record
    assert isinstance(judged, Judged)
    turned = replace(judged, outcome="good" if judged.outcome == "bad" else "bad")
    ((where, expected, found),) = differing([*entries[:at], JournalEntry(0.0, turned), *entries[at + 1 :]])
    assert where == f"j:{at + 1}"
    assert (expected.split()[0], found.split()[0]) == (judged.outcome, turned.outcome)


def test_an_end_before_the_search_is_over_and_a_trial_whose_outcome_was_turned() -> None:
    log = finished(start(free(8), "ordered"), SimulatedBench(all_of(frozenset({"p03"}))))
    entries, end = list(log.entries[:-1]), log.entries[-1]
    last = max(n for n, one in enumerate(entries) if isinstance(one.record, Built))
    ((where, expected, _),) = differing([*entries[:last], end])
    assert (where, expected) == (f"j:{last + 1}", "a search that goes on")
    at = max(n for n, one in enumerate(entries) if isinstance(one.record, Tried))
    tried = entries[at].record
    assert isinstance(tried, Tried)
    other: Trial = GOOD if tried.outcome == "bad" else BAD
    turned = JournalEntry(0.0, replace(tried, outcome=other.outcome, kind=other.kind))
    assert [where for where, _, _ in differing([*entries[:at], turned, *entries[at + 1 :], end])]
