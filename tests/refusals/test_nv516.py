"""NV516, hardware gate missing: `serve`, and what else starts an engine, without the gate that its profile requires."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core import clock
from nvllm.core.paths import Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal
from nvllm.host import facts, gate_records, gates
from nvllm.serve.examination import Depth, examine
from support.gate_samples import DAY, record
from support.plansamples import edit, places, project, put_model

CURE = "nvllm gate memory --bands 1G"


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose profile requires a memory gate; no engine answers."""
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    found = project(tmp_path)
    put_model(places(tmp_path))
    edit(found.spec("demo"), "    port: 8000\n", "    port: 8000\n    gates: {memory: {max-age: 30, band: 1GiB}}\n")
    return found


def refused(demo: Project, tmp_path: Path) -> list[Refusal]:
    found = examine(demo, places(tmp_path), "demo", "eager", Depth.WHOLE, paranoid=False, progress=Silent())
    return [one for one in found.refusals if one.code == "NV516"]


def keep(tmp_path: Path, age: float, **changes: object) -> Path:
    measured = clock.stamp(time.time() - age)
    here = gates.machine(facts.probe([]))
    return gate_records.write(places(tmp_path).gates, record(**{"measured": measured, "machine": here, **changes}))


def test_without_a_run(demo: Project, tmp_path: Path) -> None:
    (one,) = refused(demo, tmp_path)
    assert (one.found, one.cure) == ("no such run", CURE)
    assert one.expected == "a memory gate of a band of 1G that this machine passed in the last 30 days"


def test_a_run_that_passed_here_satisfies(demo: Project, tmp_path: Path) -> None:
    keep(tmp_path, 29 * DAY)
    assert refused(demo, tmp_path) == []


def test_too_old(demo: Project, tmp_path: Path) -> None:
    keep(tmp_path, 31 * DAY)
    assert "31.0 days ago" in refused(demo, tmp_path)[0].found


def test_from_the_future(demo: Project, tmp_path: Path) -> None:
    keep(tmp_path, -DAY)
    assert "in the future of this host's clock" in refused(demo, tmp_path)[0].found


def test_failed(demo: Project, tmp_path: Path) -> None:
    keep(tmp_path, 0, outcome="failed")
    assert refused(demo, tmp_path)[0].found.startswith("failed on ")


def test_of_another_machine(demo: Project, tmp_path: Path) -> None:
    keep(tmp_path, 0, machine=replace(gates.machine(facts.probe([])), id="0" * 64))
    assert "a record of another machine: machine id 000000000000" in refused(demo, tmp_path)[0].found


def test_damaged(demo: Project, tmp_path: Path) -> None:
    keep(tmp_path, DAY)
    newest = keep(tmp_path, 0)
    os.truncate(newest, 100)
    (one,) = refused(demo, tmp_path)
    assert (one.where, one.found[:18]) == (str(newest), "a damaged record: ")


def test_the_serve_hash_and_the_plan_do_not_know_of_it(demo: Project, tmp_path: Path) -> None:
    before = examine(demo, places(tmp_path), "demo", "eager", Depth.WHOLE, paranoid=False, progress=Silent()).plan
    edit(demo.spec("demo"), "    gates: {memory: {max-age: 30, band: 1GiB}}\n", "")
    after = examine(demo, places(tmp_path), "demo", "eager", Depth.WHOLE, paranoid=False, progress=Silent()).plan
    assert before == after


@pytest.mark.parametrize("command", [f"{one} demo --profile eager" for one in ("serve", "doctor", "bless")])
def test_what_starts_an_engine_and_doctor_say_it(
    demo: Project, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "machine_id", lambda: "another one")
    assert main(["--project", str(demo.root), "--json", *command.split()]) == 3
    said = json.loads(capsys.readouterr().out)["refusals"]
    assert ("NV516", CURE) in [(one["code"], one["cure"]) for one in said]
