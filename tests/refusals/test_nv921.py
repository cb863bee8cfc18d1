"""NV921, another project's instance: no command acts on it, and `status` says whose it is.

The container engine is out of reach of unit tests; the one here has a container of each project.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.main import main
from nvllm.core.paths import Project
from nvllm.engine import engine
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact
from nvllm.serve import owners
from nvllm.serve.rundir import InstanceState, RunDirectory
from support.plansamples import places, project

PLAIN = "nvllm-demo-eager"


@dataclass
class Containers:
    names: tuple[str, ...]
    stopped: list[str] = field(default_factory=list)

    def containers(self) -> tuple[ContainerFact, ...]:
        return tuple(ContainerFact(name, {INSTANCE_LABEL: name}, running=True, id=name) for name in self.names)

    def stop(self, container: str, patience: int) -> None:
        self.stopped.append(container)


@dataclass
class Two:
    """ONE has the plain name, and OTHER one of its own; the test stands in OTHER."""

    one: Project
    other: Project
    own: str
    held: Containers


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    one, other, where = project(tmp_path / "one"), project(tmp_path / "other"), places(tmp_path)
    names = []
    for each in (one, other):
        name = owners.instance_name(each, where, "demo", "eager")
        owners.claim(each, where, name)
        run = RunDirectory(where.runs / name)
        run.prepare({}, b"{}", ())
        run.write_state(InstanceState(name, "demo", "eager", False, "ready", "", "", 8000, 1, "", 1.0))
        run.keep([f"2026-11-23T00:00:00Z log of {each.root}".encode()])
        names.append(name)
    held = Containers(tuple(names))
    monkeypatch.setattr(engine, "require", lambda: held)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(other.root)
    return Two(one, other, names[1], held)


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    capsys.readouterr()
    main([*argv, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["stop", "logs"])
def test_the_instance_of_another_project_is_left_alone(
    two: Two, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (refusal,) = document(capsys, command, PLAIN)["refusals"]
    assert (refusal["code"], refusal["where"], refusal["found"]) == ("NV921", PLAIN, f"one of {two.one.root}")
    assert refusal["cure"] == f"nvllm --project {two.one.root} status"
    assert two.held.stopped == []
    assert document(capsys, "--project", str(two.one.root), command, PLAIN)["ok"]


def test_without_a_name_it_is_the_one_of_this_project(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(two.other.root) in "".join(document(capsys, "logs")["result"]["lines"])
    assert document(capsys, "stop")["result"]["instance"] == two.own
    assert two.held.stopped == [two.own]
    two.held.names = (PLAIN,)
    (refusal,) = document(capsys, "stop")["refusals"]
    assert (refusal["code"], refusal["found"]) == ("NV107", f"nothing of this project; of others: {PLAIN}")


def test_status_shows_all_and_says_whose_they_are(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    listed = document(capsys, "status")["result"]["instances"]
    assert {each["instance"]: each["project"] for each in listed} == {
        PLAIN: str(two.one.root),
        two.own: str(two.other.root),
    }
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert f"{PLAIN}  (of {two.one.root})" in shown
    assert f"(of {two.other.root})" not in shown
