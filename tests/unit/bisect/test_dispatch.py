"""Several machines: what is sent is written first, what is lost proves nothing, and nothing counts twice."""

from __future__ import annotations

import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.bisect import journal, replay_check
from nvllm.bisect.answer import Done, NextTrial
from nvllm.bisect.driver import PendingTrial, dispatch, drive
from nvllm.bisect.journal import Journal, Log
from nvllm.bisect.problem import Mode
from nvllm.bisect.records import JournalRecord, Lost, Sent, Tried
from nvllm.core.refusal import Refused, refuse
from nvllm.trials.ending import MOST_LOSSES
from nvllm.trials.trial import Built, Trial
from support.bisect_world import Judge, SimulatedBench, all_of, free, layered, start

CAUSE = frozenset({"p03", "p06"})


class Fleet(SimulatedBench):
    """COUNT machines that try by JUDGE. DIES says whether the machine of a task dies. LOG must have what is sent."""

    one_host = False

    def __init__(self, judge: Judge, log: Log, count: int = 4, dies: Callable[[Sent], bool] = lambda _: False) -> None:
        super().__init__(judge)
        self.log, self.count, self.dies = log, count, dies
        self.sent: list[Sent] = []
        self.most = self.running = 0
        self.guard = threading.Lock()
        self.cleared = threading.Event()

    def task(self, built: Built, attempt: int, reason: str) -> PendingTrial:
        name = uuid.uuid4().hex
        sent = Sent(name, built.chosen, built.build_hash, "sha256:1", "sha256:2", "cpu-1", attempt, reason)
        return PendingTrial(sent, lambda: self.tried(sent))

    def tried(self, sent: Sent) -> Trial | Lost:
        assert sent in [entry.record for entry in self.log.entries]
        with self.guard:
            self.sent.append(sent)
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.002)
        with self.guard:
            self.running -= 1
        if self.dies(sent):
            return Lost(sent.task, sent.chosen, "the machine died")
        return self.judge(frozenset(sent.chosen))

    def clear(self) -> None:
        self.cleared.set()


def records(log: Log) -> list[JournalRecord]:
    return [entry.record for entry in log.entries]


def ends(log: Log) -> Counter[str]:
    """Return how many ends each task of LOG has."""
    tasks = {one.task: 0 for one in records(log) if isinstance(one, Sent)}
    return Counter(tasks) + Counter(one.task for one in records(log) if isinstance(one, Tried | Lost))


@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 8), st.sampled_from(("ordered", "set")))
@settings(max_examples=25, deadline=None)
def test_machines_that_die_change_no_answer(seed: int, count: int, machines: int, mode: Mode) -> None:
    rng = random.Random(seed)
    found = layered(count, rng)
    cause = found.closed(rng.sample(found.order, 1))
    alone = drive(Log.of(start(found, mode)), SimulatedBench(all_of(cause)))
    log = Log.of(start(found, mode))
    fleet = Fleet(all_of(cause), log, machines, lambda sent: sent.attempt < MOST_LOSSES and rng.random() < 0.2)
    done = dispatch(log, fleet)
    assert isinstance(done, Done)
    assert isinstance(alone, Done)
    assert (done.culprits, done.certified) == (alone.culprits, alone.certified)
    assert fleet.most <= machines
    assert set(ends(log).values()) == {1}
    assert replay_check.repeat(log.entries, "log") == done


def test_several_run_at_the_same_time_and_each_result_names_its_task() -> None:
    log = Log.of(start(free(8), repeats=3))
    fleet = Fleet(all_of(CAUSE), log)
    done = dispatch(log, fleet)
    assert isinstance(done, Done)
    assert frozenset(done.culprits) == CAUSE
    assert 2 <= fleet.most <= 4
    tried = [one for one in records(log) if isinstance(one, Tried)]
    assert all(one.task for one in tried)
    assert len({one.task for one in tried}) == len(tried)


def test_a_task_that_is_lost_gets_a_new_attempt() -> None:
    log = Log.of(start(free(4)))
    fleet = Fleet(all_of(frozenset({"p02"})), log, 1, lambda sent: len(fleet.sent) == 1)
    assert isinstance(dispatch(log, fleet), Done)
    first, second = fleet.sent[:2]
    assert (first.chosen, first.attempt, second.attempt) == (second.chosen, 1, 2)
    assert first.task != second.task


def test_what_is_always_lost_ends_the_run() -> None:
    log = Log.of(start(free(4)))
    with pytest.raises(Refused) as caught:
        dispatch(log, Fleet(all_of(frozenset({"p02"})), log, 1, lambda _: True))
    assert [one.code for one in caught.value.refusals] == ["NV344"]
    assert [type(one) for one in records(log)[-2 * MOST_LOSSES :]] == [Sent, Lost] * MOST_LOSSES
    assert isinstance(dispatch(log, Fleet(all_of(frozenset({"p02"})), log, 1)), Done)


def test_a_driver_that_was_killed_counts_nothing_twice(tmp_path: Path) -> None:
    """The driver dies after each record in turn; the one after it takes no result of a task that was sent before."""
    whole = Log.of(start(free(5)))
    dispatch(whole, Fleet(all_of(frozenset({"p04"})), whole, 3))
    for cut in range(1, len(whole.entries)):
        log = Log(whole.entries[:cut])
        left = set(log.state.sent)
        fleet = Fleet(all_of(frozenset({"p04"})), log, 3)
        done = dispatch(log, fleet)
        assert isinstance(done, Done)
        assert done.culprits == ("p04",)
        assert not left & {one.task for one in fleet.sent}
        assert set(ends(log).values()) == {1}
        written = journal.create(tmp_path / f"{cut}.jsonl", log.state.start)
        for one in records(log)[1:]:
            written.append(one)
        assert journal.load(written.path).state.trials == log.state.trials


def test_an_interrupt_ends_what_was_sent_and_counts_none_of_it() -> None:
    log = Log.of(start(free(8)))

    class Interrupted(Fleet):
        def tried(self, sent: Sent) -> Trial | Lost:
            with self.guard:
                self.sent.append(sent)
                if len(self.sent) == 2:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert self.cleared.wait(30)
            return self.judge(frozenset(sent.chosen))

    with pytest.raises(KeyboardInterrupt):
        dispatch(log, Interrupted(all_of(CAUSE), log))
    assert not [one for one in records(log) if isinstance(one, Tried)]
    assert set(ends(log).values()) == {1}


def test_a_refused_task_is_lost_and_ends_the_run() -> None:
    log = Log.of(start(free(4)))

    class Refusing(Fleet):
        def tried(self, sent: Sent) -> Trial | Lost:
            raise refuse("NV508", "a lock", "free", "held", "wait")

    with pytest.raises(Refused) as caught:
        dispatch(log, Refusing(all_of(CAUSE), log, 2))
    assert {one.code for one in caught.value.refusals} == {"NV508"}
    assert set(ends(log).values()) == {1}


def test_a_budget_sends_nothing_new() -> None:
    log = Log.of(start(free(8)))
    assert isinstance(dispatch(log, Fleet(all_of(CAUSE), log), budget=0.0, clock=lambda: 5.0), NextTrial)
    assert not log.state.sent


@pytest.fixture
def sent(tmp_path: Path) -> tuple[Journal, Sent]:
    log = journal.create(tmp_path / "journal.jsonl", start(free(2)))
    task = Sent("one", ("p01", "p02"), "build", "sha256:1", "sha256:2", "cpu-1", 1)
    log.append(task)
    return log, task


@pytest.mark.parametrize("change", ["again", "twice", "never sent", "another set"])
def test_a_journal_in_which_a_task_counts_twice_is_refused(sent: tuple[Journal, Sent], change: str) -> None:
    log, task = sent
    lost = Lost(task.task, task.chosen, "why")
    added: dict[str, list[JournalRecord]] = {
        "again": [lost, task],
        "twice": [lost, lost],
        "never sent": [replace(lost, task="two")],
        "another set": [replace(lost, chosen=())],
    }
    for one in added[change]:
        log.append(one)
    with pytest.raises(Refused) as caught:
        journal.load(log.path)
    assert [one.code for one in caught.value.refusals] == ["NV804"]
