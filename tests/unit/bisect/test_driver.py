"""Carrying a search out: what is written down, resuming, parallel trials, budgets and forecasts."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect.answer import Done, NextTrial
from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.lookahead import Slots, lookahead
from nvllm.bisect.records import Back, End, JournalRecord, Judged, Skip, Tried, fold
from nvllm.bisect.search import propose
from nvllm.core import proc
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.trials.trial import Built, Trial, TrialOutcome
from support.bisect_world import GOOD, SimulatedBench, all_of, free, layered, sometimes, start
from support.rows import each_row


def records(log: Log) -> list[JournalRecord]:
    return [entry.record for entry in log.entries]


def test_everything_is_written_down_in_its_order() -> None:
    log = Log.of(start(free(2)))
    done = drive(log, SimulatedBench(all_of(frozenset({"p02"}))))
    assert isinstance(done, Done)
    kinds = [type(one) for one in records(log)[1:]]
    ends = [Built, Tried, Built, Tried, Judged, Judged]
    assert kinds == [*ends, Built, Tried, Judged, Built, Tried, Judged, End]
    assert records(log)[-1] == End(("p02",), exact=True, certified=True)
    first = records(log)[2]
    assert isinstance(first, Tried)
    assert (first.chosen, first.outcome, first.reason) == (("p01", "p02"), "bad", "the bad end, trial 1")


def test_driving_what_is_done_writes_nothing() -> None:
    log = Log.of(start(free(5)))
    bench = SimulatedBench(all_of(frozenset({"p02"})))
    done = drive(log, bench)
    before = log.entries
    assert drive(log, bench) == done
    assert log.entries == before


@given(st.integers(0, 10**6), st.integers(1, 8))
def test_a_search_that_goes_on_from_any_point_ends_the_same(seed: int, count: int) -> None:
    rng = random.Random(seed)
    found = layered(count, rng)
    cause = found.closed(rng.sample(found.order, 1))
    whole = Log.of(start(found))
    drive(whole, SimulatedBench(all_of(cause)))
    cut = rng.randint(1, len(whole.entries))
    part = Log(whole.entries[:cut])
    bench = SimulatedBench(all_of(cause))
    drive(part, bench)
    assert records(part)[-1] == records(whole)[-1]
    tries = [one.chosen for one in records(part) if isinstance(one, Tried)]
    assert sorted(tries) == sorted(one.chosen for one in records(whole) if isinstance(one, Tried))


def test_a_set_that_does_not_build_is_stepped_around_and_tried_once() -> None:
    broken = frozenset({frozenset({"p01", "p02", "p03", "p04"})})
    bench = SimulatedBench(all_of(frozenset({"p07"})), broken)
    log = Log.of(start(free(8), "ordered"))
    done = drive(log, bench)
    assert isinstance(done, Done)
    assert done.culprits == ("p07",)
    assert [one for one in bench.builds if one in broken] == list(broken)
    stages = [one.stage for one in records(log) if isinstance(one, Tried) and one.outcome == "untestable"]
    assert stages == ["build"]


def test_a_verdict_that_is_taken_back_is_tried_again() -> None:
    """The first answer about one set was wrong; without it the search finds the other patch."""
    wrong: set[PatchSet] = {frozenset({"p01", "p02"})}
    judge = all_of(frozenset({"p01"}))
    bench = SimulatedBench(lambda chosen: GOOD if chosen in wrong else judge(chosen))
    log = Log.of(start(free(4), "ordered"))
    first = drive(log, bench)
    assert isinstance(first, Done)
    assert first.culprits == ("p03",)
    wrong.clear()
    log.append(Back(("p01", "p02")))
    second = drive(log, bench)
    assert isinstance(second, Done)
    assert second.culprits == ("p01",)


def test_a_set_that_is_skipped_is_not_tried() -> None:
    log = Log.of(start(free(4), "ordered"), Skip(("p01", "p02")))
    bench = SimulatedBench(all_of(frozenset({"p03"})))
    done = drive(log, bench)
    assert isinstance(done, Done)
    assert done.culprits == ("p02", "p03")
    assert frozenset({"p01", "p02"}) not in bench.tries


def test_a_budget_ends_the_run_and_not_the_search() -> None:
    log = Log.of(start(free(8)))
    bench = SimulatedBench(all_of(frozenset({"p02"})))
    ticks = itertools.count()
    stopped = drive(log, bench, budget=3.5, clock=lambda: float(next(ticks)))
    assert isinstance(stopped, NextTrial)
    assert 0 < len(bench.tries) < 5
    assert isinstance(drive(log, bench), Done)


def test_what_is_left_is_forecast_at_most_once_a_minute() -> None:
    minutes = itertools.count(step=25.0)
    now, notes = [0.0], list[str]()

    class Noted(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    def judge(chosen: PatchSet) -> Trial:
        now[0] = next(minutes)
        return replace(all_of(frozenset({"p02"}))(chosen), seconds=25.0)

    log = Log.of(start(free(16), "ordered", repeats=3))
    drive(log, SimulatedBench(judge), progress=Noted(), clock=lambda: now[0])
    forecasts = [number for number, note in enumerate(notes) if "min left" in note]
    assert forecasts == list(range(3, len(notes) - 1, 3))  # a trial takes 25 s


@each_row("jobs", [2, 3, 5])
def test_trials_at_the_same_time_come_to_the_same_end(jobs: int) -> None:
    at_once, most = 0, 0
    guard = threading.Lock()

    class Watched(SimulatedBench):
        def trial(self, built: Built) -> Trial:
            nonlocal at_once, most
            with guard:
                at_once += 1
                most = max(most, at_once)
            time.sleep(0.005)  # long enough for the others to begin
            with guard:
                at_once -= 1
            return super().trial(built)

    bench = Watched(all_of(frozenset({"p03", "p06"})))
    log = Log.of(start(free(8)))
    done = drive(log, bench, jobs=jobs)
    assert isinstance(done, Done)
    assert done.culprits == ("p03", "p06")
    assert 2 <= most <= jobs


class Together(SimulatedBench):
    """A bench whose first trial but the ends' waits for others, and whose first of them is refused."""

    def __init__(self) -> None:
        super().__init__(all_of(frozenset({"p05"})))
        self.both = threading.Barrier(2)
        self.guard = threading.Lock()
        self.refused: list[PatchSet] = []

    def trial(self, built: Built) -> Trial:
        chosen = frozenset(built.chosen)
        if not 0 < len(chosen) < 8:
            return super().trial(built)
        self.both.wait(10)
        with self.guard:
            if not self.refused:
                self.refused.append(chosen)
                raise Refused([Refusal("NV808", "the probe", "an exit status below 128", "130", "go on")])
        return super().trial(built)


def test_a_trial_that_is_refused_takes_no_other_one_with_it() -> None:
    log, bench = Log.of(start(free(8), "ordered")), Together()
    with pytest.raises(Refused) as error:
        drive(log, bench, jobs=2)
    assert [one.code for one in error.value.refusals] == ["NV808"]
    tried = [frozenset(one.chosen) for one in records(log) if isinstance(one, Tried)]
    assert len(tried) == 3
    assert bench.refused[0] not in tried


def test_an_interrupt_ends_the_trials_that_run_at_the_same_time() -> None:
    cleared = threading.Event()
    guard = threading.Lock()

    class Interrupted(SimulatedBench):
        running = 0

        def trial(self, built: Built) -> Trial:
            if not 0 < len(built.chosen) < 8:
                return super().trial(built)
            with guard:
                self.running += 1
                if self.running == 2:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert cleared.wait(30)
            return super().trial(built)

        def clear(self) -> None:
            cleared.set()

    log = Log.of(start(free(8), "ordered"))
    with pytest.raises(KeyboardInterrupt):
        drive(log, Interrupted(all_of(frozenset({"p05"}))), jobs=2)
    assert cleared.is_set()
    assert sum(isinstance(one, Tried) for one in records(log)) == 2  # the ends; what was torn down proves nothing


def test_two_quick_interrupts_end_probes_that_run_at_the_same_time(tmp_path: Path) -> None:
    """The probes ignore SIGTERM. The second interrupt must not leave the first one's cleaning half done."""
    programs = proc.Programs(tmp_path / "ledger")

    class Stubborn(SimulatedBench):
        cleared = 0

        def trial(self, built: Built) -> Trial:
            if 0 < len(built.chosen) < 8:
                pids = tmp_path / f"{len(built.chosen)}.pid"
                script = f"trap '' TERM; echo $$ > {pids}; sleep 60 & wait; sleep 60"
                programs.run(["sh", "-c", script], env=proc.environment({}), timeout=60)
            return super().trial(built)

        def clear(self) -> None:
            self.cleared += 1
            if self.cleared == 1:
                signal.raise_signal(signal.SIGINT)  # the second interrupt, while the first is dealt with
            programs.end()

    def interrupt() -> None:
        while len(found := [one for one in tmp_path.glob("*.pid") if one.read_text()]) < 2:
            time.sleep(0.01)
        assert len(found) == 2
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    began, log = time.monotonic(), Log.of(start(free(8), "ordered"))
    with pytest.raises(KeyboardInterrupt):
        drive(log, Stubborn(all_of(frozenset({"p05"}))), jobs=2)
    assert time.monotonic() - began < 10
    assert sum(isinstance(one, Tried) for one in records(log)) == 2
    for one in tmp_path.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(one.read_text()), 0)
    assert list((tmp_path / "ledger").iterdir()) == []


def by_hand(chosen: tuple[str, ...], outcome: TrialOutcome) -> Tried:
    return Tried(chosen, outcome, "", None, "", 1.0, recalled=False, reason="by hand", by_hand=True)


def test_a_step_of_a_long_search_is_quick() -> None:
    """It took 4 s at 2,849 trials: every trial was counted anew, and every set judged anew, at each step."""
    first = start(free(16), "set", flaky=True)
    log = Log.of(replace(first, max_trials=10000))
    rng = random.Random(5)
    for number in range(3000):
        chosen = first.order[: number % 17]
        log.append(by_hand(chosen, "bad" if rng.random() < (0.5 if "p07" in chosen else 0.05) else "good"))
    state = log.state
    began = time.process_time()
    for _ in range(10):
        propose(state.problem, state.evidence)
        state = state.after(by_hand(first.order, "bad"))
    assert (time.process_time() - began) / 10 < 0.5


def test_what_is_ahead_begins_with_what_is_next() -> None:
    log = Log.of(start(free(8), "ordered"))
    drive(log, SimulatedBench(all_of(frozenset({"p05"}))))
    kept = [one for one in records(log) if not isinstance(one, End)]
    state = fold(kept[: kept.index(next(one for one in kept if isinstance(one, Judged) and one.chosen == ()))])
    found = lookahead(state.problem, state.evidence, Slots(3, one_host=True))
    assert found[0] == propose(state.problem, state.evidence)
    # Both halves are worth an image before it is known which of them is wanted.
    assert [len(request.chosen) for request in found] == [4, 2, 6]


@each_row("jobs", [1, 3, 8])
def test_no_set_is_tried_before_both_ends_are_proved(jobs: int) -> None:
    for repeats in (1, 3):
        log, bench = Log.of(start(free(8), repeats=repeats)), SimulatedBench(lambda _: GOOD)
        with pytest.raises(Refused):
            drive(log, bench, jobs=jobs)
        assert set(bench.builds) == set(bench.tries) == {frozenset(), frozenset(free(8).order)}


@each_row("jobs", [1, 4])
def test_every_set_that_was_tried_has_its_verdict_in_the_log(jobs: int) -> None:
    log = Log.of(start(free(8)))
    drive(log, SimulatedBench(all_of(frozenset({"p03", "p06"}))), jobs=jobs)
    tried = {frozenset(one.chosen): one.outcome for one in records(log) if isinstance(one, Tried)}
    judged = [one for one in records(log) if isinstance(one, Judged)]
    assert {frozenset(one.chosen): one.outcome for one in judged} == tried
    assert len(judged) == len(tried)  # and nothing is said twice


def test_a_probe_that_wants_to_stop_leaves_the_log_whole() -> None:
    class Stopping(SimulatedBench):
        def trial(self, built: Built) -> Trial:
            if len(self.tries) == 3:
                raise KeyboardInterrupt
            return super().trial(built)

    log = Log.of(start(free(8)))
    bench = Stopping(all_of(frozenset({"p02"})))
    with pytest.raises(KeyboardInterrupt):
        drive(log, bench)
    assert sum(isinstance(one, Tried) for one in records(log)) == 3
    done = drive(log, SimulatedBench(all_of(frozenset({"p02"}))))
    assert isinstance(done, Done)


def test_an_end_that_is_not_as_declared_stops_everything() -> None:
    log = Log.of(start(free(4)))
    with pytest.raises(Refused):
        drive(log, SimulatedBench(lambda _: GOOD))
    assert not any(isinstance(one, End) for one in records(log))


def test_a_flaky_failure_through_the_whole_path() -> None:
    log = Log.of(start(free(8), "ordered", flaky=True))
    done = drive(log, SimulatedBench(sometimes(frozenset({"p05"}), random.Random(2), 0.6)))
    assert isinstance(done, Done)
    assert done.culprits == ("p05",)
    assert done.certified


def test_the_bench_is_asked_in_the_order_of_the_series() -> None:
    bench = SimulatedBench(all_of(frozenset({"p01"})))
    log = Log.of(start(free(12)))
    drive(log, bench)
    chosen = [one.chosen for one in records(log) if isinstance(one, Built)]
    assert all(list(one) == sorted(one) for one in chosen)
