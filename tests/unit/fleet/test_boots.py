"""Boots on other machines: which machines get them, what is written before, and what is believed of an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache.evaluation import EvaluationRecord
from nvllm.cache.manifest import TrialMachine
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.fleet import boots, tasks
from nvllm.fleet.boots import BootMachines
from nvllm.fleet.machines import ClusterNode, MachinePool, NotCarriedError
from nvllm.fleet.tasks import BootAnswer, BootTask, ReadyAnswer, ReadyTask, StatusAnswer
from support.rows import each_row
from support.task_samples import BOOT, COMPILED, HOST, LOG, SERVED, PlayedMachines, booted, good_record

ONE, TWO = ClusterNode("1", "one", HOST), ClusterNode("2", "two", HOST)
FIRST = good_record(1)


def good(machine: ClusterNode, task: BootTask) -> bytes:
    return tasks.answer_line(booted(task))


def refusing(code: str) -> Callable[[ClusterNode, Any], bytes]:
    def answer(machine: ClusterNode, task: BootTask | ReadyTask) -> bytes:
        refused = Refused([Refusal(code, "a place", "this", "that", "a cure")])
        return tasks.answer_line(tasks.refused_answer(task.task, "cpu-other" if code == "NV342" else HOST, refused))

    return answer


def pool(carrier: PlayedMachines) -> MachinePool:
    return MachinePool(carrier, HOST, Silent(), "add a machine")


@dataclass
class Setting:
    directory: Path

    def run(self, carrier: PlayedMachines, count: int = 1) -> Any:
        machines = BootMachines(pool(carrier), SERVED, self.directory)
        return machines.boots(COMPILED, BOOT.candidate, FIRST, count)

    def codes(self, carrier: PlayedMachines, count: int = 1) -> list[str]:
        with pytest.raises(Refused) as caught:
            self.run(carrier, count)
        return sorted({one.code for one in caught.value.refusals})

    def written(self) -> list[dict[str, Any]]:
        found = [json.loads(one.read_bytes()) for one in (self.directory / "tasks").glob("*.json")]
        return sorted(found, key=lambda one: (one["number"], one["attempt"]))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path / "bless")


def test_every_trial_is_on_record_with_its_machine_and_its_log(setting: Setting) -> None:
    carrier = PlayedMachines([ONE, TWO], good)
    found = setting.run(carrier, 4)
    assert [one.number for one in found] == [2, 3, 4, 5]
    assert {one.machine for one in found} <= {TrialMachine("one", HOST), TrialMachine("two", HOST)}
    assert all((setting.directory / f"trial-{number}/engine.log").read_bytes() == LOG for number in range(2, 6))
    assert [(one["number"], one["end"]) for one in setting.written()] == [(number, "good") for number in range(2, 6)]
    assert {one["task"] for one in setting.written()} == {task.task for _, task in carrier.carried}


def test_no_machine_says_what_an_evaluation_came_to(setting: Setting) -> None:
    """Only the first trial is asked one, and that runs on the host that blesses."""
    claimed = EvaluationRecord(
        "questions", "q.jsonl", 64 * "a", 64 * "b", "{question}", (), "strict", 8, "0%", 1, 1, 0, 64 * "c"
    )

    def answer(machine: ClusterNode, task: BootTask) -> bytes:
        honest = booted(task)
        return tasks.answer_line(replace(honest, record=replace(honest.record, evaluation=claimed)))

    (record,) = setting.run(PlayedMachines([ONE], answer))
    assert record.evaluation is None


def test_a_task_is_written_before_it_is_sent(setting: Setting) -> None:
    seen: list[dict[str, Any]] = []

    def looking(machine: ClusterNode, task: BootTask) -> bytes:
        seen.extend(setting.written())
        return good(machine, task)

    setting.run(PlayedMachines([ONE], looking))
    assert [(one["number"], one["machine"], one["end"]) for one in seen] == [(2, "one", "")]


def test_a_lost_machine_is_no_verdict_and_the_trial_runs_elsewhere(setting: Setting) -> None:
    def dying(machine: ClusterNode, task: BootTask) -> bytes:
        if machine is ONE:
            raise NotCarriedError("it died")
        return good(machine, task)

    (record,) = setting.run(PlayedMachines([ONE, TWO], dying))
    assert record.machine == TrialMachine("two", HOST)
    assert [(one["attempt"], one["end"]) for one in setting.written()] == [(1, "lost"), (2, "good")]


def test_a_trial_that_is_lost_again_and_again_ends_the_bless(setting: Setting) -> None:
    names = [ClusterNode(str(number), f"m{number}", HOST) for number in range(4)]

    def dying(machine: ClusterNode, task: BootTask) -> bytes:
        raise NotCarriedError("it died")

    assert setting.codes(PlayedMachines(names, dying)) == ["NV344"]
    assert [one["end"] for one in setting.written()] == ["lost"] * 3


def test_a_machine_of_another_class_is_asked_no_more(setting: Setting) -> None:
    def answer(machine: ClusterNode, task: BootTask) -> bytes:
        return (refusing("NV342") if machine is ONE else good)(machine, task)

    found = setting.run(PlayedMachines([ONE, TWO], answer), 2)
    assert {one.machine for one in found} == {TrialMachine("two", HOST)}


def test_where_no_machine_is_of_the_class_nothing_is_sent(setting: Setting) -> None:
    carrier = PlayedMachines([ClusterNode("1", "one", "cpu-other")], good)
    assert setting.codes(carrier) == ["NV343"]
    assert carrier.carried == []


@pytest.mark.parametrize("code", ["NV912", "NV907", "NV508"])
def test_the_first_refusal_ends_the_bless(setting: Setting, code: str) -> None:
    """A boot that is not good, a candidate that was tampered with, and a machine that is busy."""
    carrier = PlayedMachines([ONE], refusing(code))
    assert setting.codes(carrier, 20) == [code]
    assert len(carrier.carried) < 20
    assert carrier.cancelled
    assert setting.written()[0]["end"] == "refused"
    assert not (setting.directory / "trial-2").exists()


def test_a_bad_boot_ends_the_others(setting: Setting) -> None:
    begun, ended = threading.Event(), threading.Event()

    class Cancelled(PlayedMachines):
        def cancel(self) -> None:
            ended.set()

    def answer(machine: ClusterNode, task: BootTask) -> bytes:
        if machine is ONE:
            begun.set()
            assert ended.wait(30)
            raise NotCarriedError("it was cancelled")
        assert begun.wait(30)
        return refusing("NV912")(machine, task)

    assert setting.codes(Cancelled([ONE, TWO], answer), 2) == ["NV912"]


SAVED = b"2026-11-22T10:00:02.0Z INFO saved AOT compiled function to /somewhere\n"


@pytest.mark.parametrize(
    "changed",
    [
        lambda task: replace(booted(task), task="2" * 32),
        lambda task: replace(booted(task), host="cpu-other"),
        lambda task: replace(booted(task), serve_hash="0" * 64),
        lambda task: replace(booted(task), record=replace(good_record(3))),
        lambda task: replace(booted(task), record=replace(good_record(2), coherent=False)),
        lambda task: replace(booted(task), record=replace(good_record(2), boot=FIRST.boot)),
        lambda task: replace(booted(task), record=replace(good_record(2), kv_tokens=1)),
        lambda task: replace(booted(task), record=replace(good_record(2), log="0" * 64)),
        lambda task: booted(task, LOG + SAVED),
        lambda task: booted(task, b"nothing was loaded\n"),
        lambda task: booted(task, LOG.replace(b"a/model", b"b/model")),
        lambda task: ReadyAnswer(task.task, HOST, SERVED.serve_hash),
        lambda task: StatusAnswer(HOST, (), (), ()),
    ],
)
def test_an_answer_that_does_not_fit_its_task_counts_nowhere(
    setting: Setting, changed: Callable[[BootTask], BootAnswer]
) -> None:
    carrier = PlayedMachines([ONE], lambda _, task: tasks.answer_line(changed(task)))
    assert setting.codes(carrier) == ["NV345"]
    assert not (setting.directory / "trial-2").exists()


def test_two_trials_of_one_container_are_not_two(setting: Setting) -> None:
    def same(machine: ClusterNode, task: BootTask) -> bytes:
        return tasks.answer_line(replace(booted(task), record=replace(good_record(task.number), boot="a" * 64)))

    assert setting.codes(PlayedMachines([ONE], same), 2) == ["NV345"]


def test_an_interrupt_ends_what_runs(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(boots, "wait", interrupted)
    carrier = PlayedMachines([ONE], good)
    with pytest.raises(KeyboardInterrupt):
        setting.run(carrier, 2)
    assert carrier.cancelled


# Before the compile


def ready(machine: ClusterNode, task: ReadyTask) -> bytes:
    return tasks.answer_line(ReadyAnswer(task.task, HOST, task.served.serve_hash))


def test_machines_that_are_ready() -> None:
    assert boots.check_ready(pool(PlayedMachines([ONE, TWO], ready)), SERVED) == [ONE, TWO]


def test_what_a_machine_lacks_is_refused_by_its_name() -> None:
    def lacking(machine: ClusterNode, task: ReadyTask) -> bytes:
        return (refusing("NV401") if machine is TWO else ready)(machine, task)

    with pytest.raises(Refused) as caught:
        boots.check_ready(pool(PlayedMachines([ONE, TWO], lacking)), SERVED)
    assert [(one.code, one.where, one.cure) for one in caught.value.refusals] == [("NV401", "two: a place", "a cure")]


def test_a_machine_that_dies_or_lies_before_the_compile_is_left_out() -> None:
    three = ClusterNode("3", "three", HOST)

    def answer(machine: ClusterNode, task: ReadyTask) -> bytes:
        if machine is ONE:
            raise NotCarriedError("it died")
        return (refusing("NV342") if machine is TWO else ready)(machine, task)

    assert boots.check_ready(pool(PlayedMachines([ONE, TWO, three], answer)), SERVED) == [three]


@each_row(("answer", "code"), [(refusing("NV342"), "NV343"), (good_record, "NV344")])
def test_without_a_machine_that_is_ready(answer: Any, code: str) -> None:
    def dying(machine: ClusterNode, task: ReadyTask) -> bytes:
        raise NotCarriedError("it died")

    with pytest.raises(Refused) as caught:
        boots.check_ready(pool(PlayedMachines([ONE], dying if code == "NV344" else answer)), SERVED)
    assert {one.code for one in caught.value.refusals} == {code}


def test_readiness_for_something_else_is_refused() -> None:
    def other(machine: ClusterNode, task: ReadyTask) -> bytes:
        return tasks.answer_line(ReadyAnswer(task.task, HOST, "0" * 64))

    with pytest.raises(Refused) as caught:
        boots.check_ready(pool(PlayedMachines([ONE], other)), SERVED)
    assert {one.code for one in caught.value.refusals} == {"NV345"}
