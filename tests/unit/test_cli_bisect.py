"""`nvllm bisect` from start to report, through the command line, on a project on disk.

The engine is out of reach of unit tests, so sets are built and tried by a simulated bench; the rest is real.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bisect_world import Judge, SimulatedBench, all_of
from nvllm import trials
from nvllm.cli import main
from plansamples import project, write_lock


class Bench(SimulatedBench):
    def clear(self) -> None:
        pass


@pytest.fixture(autouse=True)
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a project with the series first, second (which requires first), with a probe and no engine."""
    found = project(tmp_path)
    write_lock(found)
    monkeypatch.chdir(found.root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    monkeypatch.setattr("nvllm.engine.require", lambda: None)
    path = tmp_path / "probe.sh"
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return path


def with_judge(monkeypatch: pytest.MonkeyPatch, judge: Judge) -> Bench:
    bench = Bench(judge)
    monkeypatch.setattr(trials, "EngineBench", lambda *_: bench)
    return bench


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["result"]


def codes(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    capsys.readouterr()
    assert main([*argv, "--json"]) in (1, 2, 3)
    return [one["code"] for one in json.loads(capsys.readouterr().out)["refusals"]]


def test_from_start_to_report(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = answer(capsys, "bisect", "start", "demo", "--set", "--test", str(probe))
    assert begun["items"] == ["first", "second"]
    assert answer(capsys, "bisect", "plan") == begun["forecast"]
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    found = answer(capsys, "bisect", "run")["found"]
    assert (found["culprits"], found["certified"]) == (["first", "second"], True)
    assert answer(capsys, "bisect", "status")["found"] == found
    tries = len(bench.tries)
    assert answer(capsys, "bisect", "run")["found"] == found
    assert len(bench.tries) == tries
    assert main(["bisect", "report", "--html", str(tmp_path / "report.html")]) == 0
    assert "together break it" in (tmp_path / "report.html").read_text()
    assert main(["bisect", "report", "--upstream"]) == 0
    assert "Bisected by rebuilding" in capsys.readouterr().out
    assert "nvllm build demo --patches first" in answer(capsys, "bisect", "log")["script"]
    assert answer(capsys, "bisect", "why", "first")["verdict"] == "good"
    journal = tmp_path / "home/state/bisect/demo/journal.jsonl"
    assert answer(capsys, "bisect", "replay", str(journal))["found"] == found


def test_a_verdict_taken_back_is_tried_anew_and_not_recalled(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["second"]
    tries = len(bench.tries)
    assert answer(capsys, "bisect", "back", "first")["patches"] == ["first"]
    assert answer(capsys, "bisect", "status")["found"] is None
    answer(capsys, "bisect", "run")
    assert bench.tries[tries:] == 3 * [frozenset({"first"})]  # as often as a certificate asks
    assert answer(capsys, "bisect", "skip", "first")["patches"] == ["first"]
    assert answer(capsys, "bisect", "run")["found"]["exact"] is False


def test_a_second_bisect_takes_the_trials_of_the_first(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["bisect", "start", "demo", "--test", str(probe)]
    answer(capsys, *start)
    assert codes(capsys, *start) == ["NV807"]
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    answer(capsys, "bisect", "run")
    tries = len(bench.tries)
    answer(capsys, *start, "--discard")
    answer(capsys, "bisect", "run")
    assert len(bench.tries) == tries


def test_a_budget_leaves_the_search_to_be_gone_on_with(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    with_judge(monkeypatch, all_of(frozenset({"first"})))
    stopped = answer(capsys, "bisect", "run", "--budget", "0")
    assert (stopped["done"], stopped["next"]) == (False, ["first", "second"])
    assert [one["patch"] for one in stopped["beliefs"]] == ["first", "second"]
    assert main(["bisect", "run", "--budget", "0"]) == 0
    assert "culprit:\n  first   0.500\n  second  0.500\nthe budget is spent" in capsys.readouterr().out
    assert main(["bisect", "status"]) == 0
    assert "  second  0.500\n" in capsys.readouterr().out
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["first"]


def test_bad_input_is_refused(probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["bisect", "start", "demo", "--test", str(probe)]
    assert codes(capsys, "bisect", "run") == ["NV107"]
    assert codes(capsys, "bisect", "start", "demo") == ["NV108"]
    assert codes(capsys, *start, "--bad", "secnd") == ["NV107"]
    assert codes(capsys, *start, "--bad", "second") == ["NV106"]
    assert codes(capsys, *start, "--bad", "none", "--good", "all") == ["NV108"]
    assert codes(capsys, *start, "--profile", "nope") == ["NV107"]
    assert codes(capsys, "bisect", "start", "demo", "--test", str(probe.parent)) == ["NV802"]
    answer(capsys, *start)
    assert codes(capsys, "bisect", "why", "nope") == ["NV805"]
    assert codes(capsys, "bisect", "back", "first") == ["NV805"]
    assert codes(capsys, "bisect", "report", "--upstream") == ["NV805"]
    with_judge(monkeypatch, all_of(frozenset({"nothing"})))
    assert codes(capsys, "bisect", "run") == ["NV801"]
    probe.write_text("#!/bin/sh\nexit 1\n")
    assert codes(capsys, "bisect", "run") == ["NV803"]
