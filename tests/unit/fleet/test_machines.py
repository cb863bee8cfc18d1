"""Machines of a cluster: which are asked, and what is believed of what they answer."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from nvllm.bisect.records import BisectStart, Lost, Sent
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.fleet import machines, registry, tasks
from nvllm.fleet.machines import ClusterNode, NotCarriedError, RemoteMachines
from nvllm.fleet.registry import Repository, RepositoryName
from nvllm.fleet.tasks import StatusAnswer, TrialTask
from nvllm.trials import probe
from nvllm.trials.bench import EngineBench
from nvllm.trials.trial import Trial
from support import bisect_world
from support.task_samples import HOST, Noting, PlayedMachines, answered

SENT = Sent("1" * 32, ("p01",), "b" * 64, f"sha256:{'c' * 64}", f"sha256:{'d' * 64}", HOST, 1)
ONE, TWO = ClusterNode("1", "one", HOST), ClusterNode("2", "two", HOST)


def good(machine: ClusterNode, task: TrialTask) -> bytes:
    return tasks.answer_line(answered(task))


def another_class(machine: ClusterNode, task: TrialTask) -> bytes:
    refused = Refused([Refusal("NV342", "this host", "class a", "class b", "label it")])
    return tasks.answer_line(tasks.refused_answer(task.task, "cpu-other", refused))


@dataclass
class Setting:
    path: Path
    start: BisectStart

    def of(self, carrier: PlayedMachines, jobs: int = 64) -> RemoteMachines:
        repository = Repository(RepositoryName("http", "127.0.0.1:5000", "nvllm"), None, Silent())
        return RemoteMachines(
            cast("EngineBench", Noting()), self.start, carrier, repository, self.path / "evidence", jobs
        )


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    program = tmp_path / "probe"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    start = bisect_world.start(bisect_world.free(2))
    return Setting(tmp_path, replace(start, host=HOST, probe=probe.program(program, (), "", build_only=True)))


def test_a_result_is_believed_with_its_evidence_on_the_disk(setting: Setting) -> None:
    carrier = PlayedMachines([ONE], good)
    trial = setting.of(carrier).trial(SENT)
    evidence = hashlib.sha256(b"said").hexdigest()
    assert trial == Trial("bad", "exit 3", None, evidence, 1.5, "said")
    assert (setting.path / "evidence" / evidence).read_bytes() == b"said"
    ((_, task),) = carrier.carried
    assert (task.task, task.host, task.manifest, task.test) == (SENT.task, HOST, SENT.manifest, setting.start.probe)


def test_a_machine_asks_the_registry_over_the_transport_of_the_driver(setting: Setting) -> None:
    carrier = PlayedMachines([ONE], good)
    remote = setting.of(carrier)
    remote.repository = Repository(registry.parse("http://spark1:5000/nvllm")[0], None, Silent())
    remote.trial(SENT)
    ((_, task),) = carrier.carried
    assert registry.parse(task.repository)[0].scheme == "http"


def test_only_machines_of_the_class_are_asked(setting: Setting) -> None:
    listed = [ONE, ClusterNode("2", "two", "cpu-other"), ClusterNode("3", "three", ""), ClusterNode("4", "four", "")]
    found = setting.of(PlayedMachines(listed, good, {"3": HOST, "4": "cpu-other"}))
    assert [one.name for one in found.pool.fitting()] == ["one", "three"]
    assert found.count == 2
    assert setting.of(PlayedMachines(listed, good, {"3": HOST}), jobs=1).count == 1


def test_a_wrong_label_is_found_and_another_machine_gets_the_task(setting: Setting) -> None:
    carrier = PlayedMachines(
        [ONE, TWO], lambda machine, task: (another_class if machine is ONE else good)(machine, task)
    )
    found = setting.of(carrier)
    assert isinstance(found.trial(SENT), Trial)
    assert [name for name, _ in carrier.carried] == ["1", "2"]
    assert [one.name for one in found.pool.fitting()] == ["two"]
    assert isinstance(found.trial(SENT), Trial)
    assert [name for name, _ in carrier.carried] == ["1", "2", "2"]


def test_where_every_label_is_wrong_there_is_no_machine(setting: Setting) -> None:
    found = setting.of(PlayedMachines([ONE, TWO], another_class))
    with pytest.raises(Refused) as caught:
        found.trial(SENT)
    assert [one.found for one in caught.value.refusals] == ["one: cpu-other, two: cpu-other"]


def test_without_a_machine_of_the_class_nothing_is_sent(setting: Setting) -> None:
    carrier = PlayedMachines([ClusterNode("1", "one", "cpu-other")], good)
    with pytest.raises(Refused) as caught:
        _ = setting.of(carrier).count
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found) == ("NV343", "one: cpu-other")
    assert carrier.carried == []


def test_a_machine_that_dies_is_a_loss(setting: Setting) -> None:
    class Dying(PlayedMachines):
        def machines(self) -> list[ClusterNode]:
            return self.listed  # it died since

    carrier = Dying([ONE], good, dead={"1"})
    lost = setting.of(carrier).trial(SENT)
    assert isinstance(lost, Lost)
    assert lost.why == "one: it died"


def test_a_machine_that_lost_a_task_rests(setting: Setting) -> None:
    """A cluster lists a machine for some seconds after its death; the other one gets the task meanwhile."""

    def dying(machine: ClusterNode, task: TrialTask) -> bytes:
        if machine is ONE:
            raise NotCarriedError("it died")
        return good(machine, task)

    carrier = PlayedMachines([ONE, TWO], dying)
    found = setting.of(carrier)
    assert isinstance(found.trial(SENT), Lost)
    assert found.count == 1
    assert isinstance(found.trial(SENT), Trial)
    assert isinstance(found.trial(SENT), Trial)
    assert [name for name, _ in carrier.carried] == ["1", "2", "2"]


def test_a_machine_has_one_task_at_a_time(setting: Setting) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(machine: ClusterNode, task: TrialTask) -> bytes:
        begun.set()
        assert end.wait(30)
        return good(machine, task)

    carrier = PlayedMachines([ONE], slow)
    found = setting.of(carrier)
    threads = [threading.Thread(target=found.trial, args=[replace(SENT, task=name * 32)]) for name in "12"]
    for one in threads:
        one.start()
    assert begun.wait(30)
    assert len(carrier.carried) == 1
    end.set()
    for one in threads:
        one.join(30)
    assert len(carrier.carried) == 2


def test_what_waits_for_a_machine_ends_with_the_run(setting: Setting) -> None:
    found = setting.of(PlayedMachines([ONE], good))
    found.clear()
    lost = found.trial(SENT)
    assert isinstance(lost, Lost)
    assert lost.why == "it was not sent: the run ends"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda _, task: tasks.answer_line(replace(answered(task), task="2" * 32)), "NV345"),
        (lambda _, task: tasks.answer_line(answered(task, host="cpu-other")), "NV345"),
        (lambda _, task: tasks.answer_line(StatusAnswer(HOST, (), (), ())), "NV345"),
        (lambda _, task: b"what?\n", "NV345"),
        (
            lambda _, task: tasks.answer_line(
                tasks.refused_answer(task.task, HOST, Refused([Refusal("NV508", "a lock", "free", "held", "wait")]))
            ),
            "NV508",
        ),
    ],
)
def test_what_is_no_result_ends_the_run(
    setting: Setting, answer: Callable[[ClusterNode, TrialTask], bytes], code: str
) -> None:
    with pytest.raises(Refused) as caught:
        setting.of(PlayedMachines([ONE], answer)).trial(SENT)
    assert {one.code for one in caught.value.refusals} == {code}
    assert not (setting.path / "evidence").exists()


def test_the_status_of_every_machine(setting: Setting) -> None:
    found = machines.status(PlayedMachines([TWO, ONE], good, dead=set()))
    assert [one.node.name for one in found] == ["one", "two"]
    assert all(isinstance(one.answer, StatusAnswer) for one in found)
