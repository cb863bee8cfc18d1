"""Slurm carries tasks to `nvllm worker`: the line of docs/fleet.md, typed as it stands there.

The image is a small one, and the probe looks into it without starting it, as in `test_trials`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nvllm.engine import engine
from nvllm.fleet import tasks
from nvllm.fleet.tasks import Answer, RefusedAnswer, StatusAnswer, TrialAnswer, TrialTask
from nvllm.host import survey
from nvllm.host.facts import TASK_LABEL
from nvllm.serve import hostclass
from nvllm.trials import probe
from support import looking_probe, slurm_world
from support.buildable import IMAGE, Buildable
from support.engine_world import ROOT, until
from support.namespaces import allowed
from support.real_registry import RealRegistry
from support.slurm_world import SlurmWorld, slurm

if TYPE_CHECKING:
    from docker import DockerClient

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.long,
    pytest.mark.skipif(bool(slurm_world.missing()), reason=slurm_world.missing()),
    pytest.mark.skipif(not allowed(), reason="only root makes namespaces"),
]

PATCHES = ("top", "key")
"""In another order than that of `test_trials`, so no image is of both."""

OTHER = "cpu-x86_64-000000000000"
"""A class that no host has; a node's Feature says it all the same."""


def documented(program: str) -> str:
    """Return the command of docs/fleet.md that begins with PROGRAM."""
    text = (ROOT / "docs/fleet.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{program} .*$", text, re.MULTILINE)
    return str(line)


@dataclass
class Submitting:
    """Tasks below PLACE for the nodes of WORLD; TASK is one that fits the node `right`."""

    place: Path
    world: SlurmWorld
    project: Path
    task: TrialTask
    client: DockerClient
    sent: set[str] = field(default_factory=set)

    def submit(self, task: TrialTask) -> str:
        """Type the documented command for TASK, and return the number of the job."""
        (self.project / "answer.json").unlink(missing_ok=True)
        (self.project / "task.json").write_bytes(tasks.task_line(task))
        self.sent.add(task.task)
        done = self.world.type(documented("sbatch"), self.project, CLASS=task.host)
        assert done.code == 0, done
        return done.out.removeprefix("Submitted batch job ").strip()

    def held(self) -> str:
        """Submit the task, with a probe that does not end; return the number of the job when the probe runs."""
        (self.place / "hold").touch()
        number = self.submit(self.task)
        until(lambda: self.begun(self.task), "the probe runs")
        assert len(self.left()) == 1
        return number

    def sweep(self) -> None:
        """Check that the task left its container and no answer, and that the next task removes it."""
        assert (self.project / "answer.json").read_bytes() == b""
        assert [one["Labels"][TASK_LABEL] for one in self.left()] == [self.task.task]
        (self.place / "hold").unlink()
        after = replace(self.task, task=uuid.uuid4().hex, attempt=2)
        self.world.ended(self.submit(after))
        answer = self.answer()
        assert isinstance(answer, TrialAnswer), answer
        assert (answer.task, answer.outcome) == (after.task, "bad")
        assert not self.left()

    def answer(self) -> Answer:
        (line,) = (self.project / "answer.json").read_bytes().splitlines()
        return tasks.answer(line, "the output file")

    def begun(self, task: TrialTask) -> bool:
        return (self.place / "begun" / task.task).exists()

    def end(self) -> None:
        """End Slurm, and remove what its jobs left in the engine."""
        self.world.end()
        for one in self.left():
            self.client.api.remove_container(one["Id"], force=True)
        tag = f"nvllm:{IMAGE}-{self.task.build_hash[:12]}"
        if self.client.images.list(filters={"reference": tag}):
            self.client.api.remove_image(tag, force=True)

    def left(self) -> list[dict[str, Any]]:
        """Return the containers of the tasks that were sent."""
        found = self.client.api.containers(all=True, filters={"label": TASK_LABEL})
        return [one for one in found if one["Labels"][TASK_LABEL] in self.sent]


@pytest.fixture
def submitting(tmp_path: Path, docker_client: DockerClient) -> Iterator[Submitting]:
    small = Buildable(tmp_path / "small", PATCHES)
    own = hostclass.host_class(survey.host_facts(small.places, engine.connect()))
    nodes = {"right": own, "liar": OTHER}
    with slurm(tmp_path / "slurm", nodes) as world, contextlib.ExitStack() as stack:
        registry = RealRegistry(tmp_path / "registry", world.within)
        registry.start()
        stack.callback(registry.kill)
        words = ("push", registry.name, IMAGE, "--json")
        pushed = world.run("nvllm", *words, where=small.project.root, home=small.home)
        task = trial_task(looking_probe.write(tmp_path), pushed.result, own)
        found = Submitting(tmp_path, world, small.project.root, task, docker_client)
        stack.callback(found.end)
        yield found


def trial_task(path: Path, pushed: Mapping[str, Any], host: str) -> TrialTask:
    """Return a task for a host of the class HOST: the probe at PATH, on the image that was PUSHED."""
    test = probe.program(path, (), "", build_only=True)
    program = base64.b64encode(path.read_bytes()).decode()
    where = pushed["repository"], pushed["manifest"]
    return TrialTask(uuid.uuid4().hex, 1, IMAGE, "eager", PATCHES, pushed["build_hash"], *where, host, test, program)


def test_the_documented_job_leaves_its_answer_in_the_file(submitting: Submitting) -> None:
    asked = submitting.world.type(documented("echo"), submitting.project)
    said = tasks.answer(asked.out.encode(), "the documented question")
    assert isinstance(said, StatusAnswer)
    assert said.host == submitting.task.host
    job = submitting.world.ended(submitting.submit(submitting.task))
    assert (job["JobState"], job["ExitCode"], job["NodeList"]) == ("COMPLETED", "0:0", "right")
    answer = submitting.answer()
    assert isinstance(answer, TrialAnswer), answer
    assert (answer.task, answer.host) == (submitting.task.task, said.host)
    assert (answer.outcome, answer.kind, answer.stage) == ("bad", "exit 3", None)
    assert answer.evidence == hashlib.sha256(answer.bytes).hexdigest()
    assert answer.bytes == b"both\n"
    assert submitting.begun(submitting.task)
    assert not submitting.left()


def test_a_class_that_a_feature_only_says_is_refused_by_the_worker(submitting: Submitting) -> None:
    own, task = submitting.task.host, replace(submitting.task, host=OTHER)
    job = submitting.world.ended(submitting.submit(task))
    assert (job["JobState"], job["NodeList"]) == ("COMPLETED", "liar")
    answer = submitting.answer()
    assert isinstance(answer, RefusedAnswer), answer
    assert (answer.task, answer.host) == (task.task, own)
    ((code, expected, found),) = [(one.code, one.expected, one.found) for one in answer.refusals]
    assert (code, expected, found) == ("NV342", f"class {OTHER}", f"class {own}")
    assert not submitting.begun(task)
    nobody = submitting.world.type(documented("sbatch"), submitting.project, CLASS="cpu-x86_64-111111111111")
    assert "Invalid feature specification" in nobody.err
    assert nobody.code != 0


@pytest.mark.parametrize(("words", "state"), [("", "CANCELLED"), ("--full --signal=TERM", "FAILED")])
def test_a_job_that_is_ended_removes_its_container(submitting: Submitting, words: str, state: str) -> None:
    number = submitting.held()
    submitting.world.run("scancel", *words.split(), number)
    job = submitting.world.ended(number)
    assert (job["JobState"], job["ExitCode"]) == (state, "143:0")  # the worker's own; a shell would have 0:15
    assert (submitting.project / "answer.json").read_bytes() == b""
    assert not submitting.left()


def test_what_a_killed_worker_leaves_is_removed_by_the_next_one(submitting: Submitting) -> None:
    number = submitting.held()
    submitting.world.run("scancel", "--batch", "--signal=KILL", number)
    assert submitting.world.ended(number)["JobState"] == "FAILED"
    submitting.sweep()


def test_a_node_that_is_lost_runs_its_task_nowhere_else(submitting: Submitting) -> None:
    number = submitting.held()
    submitting.world.lose("right")
    until(lambda: submitting.world.job(number)["JobState"] == "NODE_FAIL", "Slurm notices", 120)
    submitting.world.begin("right")
    assert submitting.world.ended(number)["Restarts"] == "0"
    submitting.sweep()
