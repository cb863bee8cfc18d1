"""`nvllm ablate`, `eval` and `report`: what their options refuse, and what a report shows of a run."""

from __future__ import annotations

import json
import webbrowser
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.evidence import locked_keys
from nvllm.cli.main import main
from nvllm.core.proc import Programs
from nvllm.core.refusal import refuse
from nvllm.engine import engine
from nvllm.evidence import circumstances
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.evidence.runner import Runner
from nvllm.serve.fresh import FreshInstances
from support import question_samples
from support.browsers import Opened
from support.evidence_samples import legs, manifest

ROOT = Path(__file__).parents[3]
ARMS = ((), ("a",))


def run(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """Run nvllm with ARGS on the real project; return its document."""
    main([*args, "--project", str(ROOT), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


LM_EVAL = ("eval", "lm-eval", "--image", "cpu", "--profile", "tiny-eager")
LOAD = ("--prompt-len", "32", "--output-len", "16")
SWEEP = ("sweep", "cpu", "--probe", "gsm8k")
ABLATE = ("ablate", "cpu", "--profile", "tiny-eager", "--probe", "gsm8k")


@pytest.mark.parametrize(
    ("args", "code", "where"),
    [
        ((*ABLATE, "--sentinels", "page-zeroer,poison"), "NV602", "--sentinels"),
        ((*ABLATE, "--sentinels", "page-zeroer"), "NV108", "--data"),
        ((*ABLATE, "--sentinels", "page-zeroer", "--arms", "all"), "NV108", "--arms"),
        ((*ABLATE, "--sentinels", "page-zeroer", "--arms", "all,none", "--design", "full"), "NV108", "nvllm ablate"),
        (("bench", "cpu", "--profile", "tiny-eager", "--vs", "none"), "NV107", "images/cpu.yaml: .profiles"),
        (("eval", "--image", "cpu", "--profile", "tiny-eager"), "NV108", "nvllm eval"),
        ((*LM_EVAL, "--n", "3"), "NV108", "nvllm eval"),
        ((*LM_EVAL, "--tasks", "sums"), "NV512", "nvllm eval lm-eval"),
        (("eval", "gsm8k", *LM_EVAL[2:], "--tasks", "sums"), "NV108", "nvllm eval"),
        (("eval", "gsm8k", "--image", "cpu", "--profile", "none"), "NV107", "images/cpu.yaml: .profiles"),
        ((*SWEEP, "--profiles", "tiny-eager,none"), "NV107", "images/cpu.yaml: .profiles"),
        ((*SWEEP, "--profiles", "tiny-eager"), "NV108", "--data"),
        (("report", "/nonexistent"), "NV853", "/nonexistent/runner_manifest.json"),
    ],
)
def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: str, where: str
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)  # lm-eval is not installed
    (refusal,) = run(capsys, *args)["refusals"]
    assert (refusal["code"], refusal["where"]) == (code, where)


def test_a_dry_run_of_a_sweep_shows_its_legs_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = question_samples.write(tmp_path / "questions.jsonl", 4)
    options = ("--data", str(data), *LOAD, "--runs", "2", "--dry-run", "--output", str(tmp_path / "run"))
    found = run(capsys, *SWEEP, "--profiles", "tiny-eager, tiny-compiled,tiny-eager", *options)["result"]
    legs = [(one["run"], one["arm"], one["profile"]) for one in found["legs"]]
    once = [("tiny-eager", "tiny-eager"), ("tiny-compiled", "tiny-compiled"), ("tiny-eager-2", "tiny-eager")]
    assert legs == [(1, *one) for one in once] + [(2, *one) for one in reversed(once)]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "legs"),
    [
        ((*ABLATE, "--sentinels", "page-zeroer"), [("none", 1), ("page-zeroer", 1)]),
        (("eval", "gsm8k", "--image", "cpu", "--profile", "tiny-eager"), [("tiny-eager", 1)]),
    ],
)
def test_a_dry_run_of_questions_shows_its_legs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], legs: list[tuple[str, int]]
) -> None:
    data = question_samples.write(tmp_path / "questions.jsonl", 4)
    options = ("--data", str(data), "--runs", "1", "--dry-run", "--output", str(tmp_path / "run"))
    found = run(capsys, *args, *options)["result"]
    assert [(one["arm"], one["run"]) for one in found["legs"]] == legs
    assert not (tmp_path / "run").exists()


def test_a_dry_run_of_a_bench_shows_its_legs_and_traces(capsys: pytest.CaptureFixture[str]) -> None:
    profiles = ("--profile", "tiny-eager", "--vs", "tiny-compiled")
    args = ("bench", "cpu", *profiles, *LOAD, "--runs", "2", "--trace", "--dry-run")
    found = run(capsys, *args)["result"]
    legs = [(one["run"], one["arm"]) for one in found["legs"]]
    assert legs == [(1, "tiny-eager"), (1, "tiny-compiled"), (2, "tiny-compiled"), (2, "tiny-eager")]
    assert found["trace"]
    assert main([*args, "--project", str(ROOT)]) == 0
    assert capsys.readouterr().out.endswith("then each under a profiler: tiny-eager, tiny-compiled\n")
    assert main([*args, "--trace-runs", "3", "--project", str(ROOT)]) == 0
    assert capsys.readouterr().out.endswith("then each 3 times under a profiler: tiny-eager, tiny-compiled\n")
    refused = run(capsys, *(one for one in args if one != "--trace"), "--trace-runs", "3", "--trace-steps", "9")
    assert [one["where"] for one in refused["refusals"]] == ["--trace-runs", "--trace-steps"]


@pytest.fixture
def directory(tmp_path: Path) -> EvidenceDirectory:
    made = EvidenceDirectory(tmp_path / "run")
    made.begin(manifest(*ARMS, runs=2), force=False)
    for arm in ARMS:
        for verdict, answers in legs(arm, lambda *_: (True, 10, 1.0), runs=2).legs:
            made.leg(verdict.arm, verdict.run).mkdir(parents=True)
            made.finish(verdict, answers)
    return made


def test_a_report_shows_the_run(directory: EvidenceDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "report", str(directory.path))["result"]
    assert [one["name"] for one in found["arms"]] == ["none", "a"]
    assert found["findings"][0]["finding"] == "unknown"
    assert main(["report", str(directory.path), "--project", str(ROOT)]) == 0
    assert capsys.readouterr().out.startswith("# Ablation of demo, eager\n")


@pytest.mark.drawn
def test_a_report_is_written_as_a_page(directory: EvidenceDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    html = directory.path.parent / "report.html"
    assert run(capsys, "report", str(directory.path), "--html", str(html))["ok"]
    assert html.read_text().startswith("<!DOCTYPE html>")


def test_a_report_is_opened_or_its_path_is_said(
    directory: EvidenceDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened()
    monkeypatch.setattr(webbrowser, "open", opened.show)
    monkeypatch.setenv("DISPLAY", ":0")
    page = directory.path / "report.html"
    assert main(["report", str(directory.path), "--open", "--project", str(ROOT)]) == 0
    assert (opened, capsys.readouterr().out) == ([page.as_uri()], f"wrote {page}\n")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    other = directory.path.parent / "other.html"
    assert main(["report", str(directory.path), "--open", "--html", str(other), "--project", str(ROOT)]) == 0
    assert len(opened) == 1
    assert capsys.readouterr().out == f"wrote {other}; no browser can be started here: open it in one\n"
    assert other.read_text() == page.read_text()


def test_what_a_killed_run_has_left_is_ended_before_the_first_leg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    happened: list[str] = []

    def legs_run(_runner: Runner) -> None:
        happened.append("legs")
        raise refuse("NV510", "engine", "one that answers", "none", "start it")

    monkeypatch.setenv("NVLLM_HOME", str(tmp_path))
    monkeypatch.setattr(engine, "require", object)
    monkeypatch.setattr(circumstances, "host_state", lambda *_: manifest(()).host)
    monkeypatch.setattr(circumstances, "manifest", lambda *_, **__: manifest(()))
    monkeypatch.setattr(FreshInstances, "clear", lambda *_: happened.append("containers"))
    monkeypatch.setattr(Programs, "end_left", lambda _: happened.append("programs"))
    monkeypatch.setattr(Runner, "run", legs_run)
    program = tmp_path / "probe.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    words = ("eval", "--image", "cpu", "--profile", "tiny-eager", "--probe", str(program))
    (refusal,) = run(capsys, *words, "--output", str(tmp_path / "run"))["refusals"]
    assert (refusal["code"], happened) == ("NV510", ["containers", "programs", "legs"])


LARGE = "99999999999999999999"
EVAL = ("eval", "gsm8k", "--image", "cpu", "--profile", "tiny-eager")
BENCH = ("bench", "cpu", "--profile", "tiny-eager")


@pytest.mark.parametrize(
    "args",
    [
        *((*EVAL, option, LARGE) for option in ("--seed", "--length", "--timeout", "--concurrency", "--runs")),
        *((*BENCH, f"--{option}", LARGE) for option in ("requests", "prompt-len", "output-len", "concurrency", "seed")),
        (*EVAL, "--timeout", "1e300"),
        (*BENCH, "--seed", "-1"),
    ],
)
def test_what_no_document_or_clock_can_hold_is_refused(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    (refusal,) = run(capsys, *args)["refusals"]
    assert refusal["code"] == "NV108"
    assert f"'{args[-2]}': " in refusal["found"]


def test_one_process_at_a_time_writes_to_a_directory(tmp_path: Path) -> None:
    """Whatever it runs: with --force the second one would remove what the first one writes."""
    first, second = (set(locked_keys(image, (), tmp_path / "run")) for image in ("cpu", "other"))
    assert first & second
    assert not first & set(locked_keys("cpu", (), tmp_path / "another"))
