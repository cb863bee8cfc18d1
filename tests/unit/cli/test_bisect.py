"""`nvllm bisect` from start to report, through the command line, on a project on disk.

The engine is out of reach of unit tests, so sets are built and tried by a simulated bench; the rest is real.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.bisect import journal
from nvllm.bisect.artifacts import SetArtifacts
from nvllm.bisect.records import Corrected
from nvllm.cli.main import main
from nvllm.core.paths import Project, places
from nvllm.host import locks
from nvllm.host.locks import Holder, Key
from nvllm.trials.trial import Trial
from support.bisect_world import Judge, SimulatedBench, all_of
from support.plansamples import project, shorten_series, write_lock


class Bench(SimulatedBench):
    artifacts: SetArtifacts | None = None

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
    monkeypatch.setattr("nvllm.engine.engine.require", lambda: None)
    path = tmp_path / "probe.sh"
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return path


def bisects(tmp_path: Path) -> Path:
    """The bisects of the project that the test stands in."""
    return places({"NVLLM_HOME": str(tmp_path / "home")}).work(Project(Path.cwd())) / "bisect"


def corrections(tmp_path: Path) -> tuple[Corrected, ...]:
    """The corrections of the probe in the journal of the bisect of `demo`."""
    return journal.load(bisects(tmp_path) / "demo/journal.jsonl").state.corrections


def with_judge(monkeypatch: pytest.MonkeyPatch, judge: Judge) -> Bench:
    bench = Bench(judge)
    monkeypatch.setattr("nvllm.trials.bench.EngineBench", lambda *_: bench)
    return bench


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["result"]


def codes(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    capsys.readouterr()
    assert main([*argv, "--json"]) in (1, 2, 3)
    return [one["code"] for one in json.loads(capsys.readouterr().out)["refusals"]]


def text(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main([*argv]) == 0
    return capsys.readouterr().out


def test_an_eager_profile_on_the_cpu_has_no_builds_that_differ(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = "all boots of a set run the same bytes (enforce-eager, on the CPU), so builds cannot differ"
    assert builds not in text(capsys, "bisect", "start", "demo", "--test", str(probe))  # a steady failure has no doubt
    assert builds in text(capsys, "bisect", "start", "demo", "--discard", "--flaky", "--test", str(probe))
    assert builds in text(capsys, "bisect", "plan")
    unserved = ("--flaky", "--build-only", "--test", str(probe))
    assert builds not in text(capsys, "bisect", "start", "demo", "--discard", *unserved)
    assert main(["bisect", "start", "demo", "--discard", "--flaky", "--test", str(probe)]) == 0
    with_judge(monkeypatch, all_of(frozenset({"second"})))
    spec = Path("images/demo.yaml")
    spec.write_text(spec.read_text().replace("enforce-eager: true", "enforce-eager: false"))
    assert codes(capsys, "bisect", "run") == ["NV803"]
    assert main(["bisect", "start", "demo", "--discard", "--flaky", "--test", str(probe)]) == 0
    assert builds not in text(capsys, "bisect", "plan")


def test_from_start_to_report(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = answer(capsys, "bisect", "start", "demo", "--set", "--test", str(probe))
    assert begun["items"] == ["first", "second"]
    assert answer(capsys, "bisect", "plan") == begun["forecast"]
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    found = answer(capsys, "bisect", "run")["found"]
    assert (found["culprits"], found["certified"]) == (["second"], True)
    assert found["comes_along"] == [{"patch": "first", "required_by": ["second"]}]
    assert answer(capsys, "bisect", "status")["found"] == found
    tries = len(bench.tries)
    assert answer(capsys, "bisect", "run")["found"] == found
    assert len(bench.tries) == tries
    assert main(["bisect", "report", "--html", str(tmp_path / "report.html")]) == 0
    assert "first comes along, required by second." in (tmp_path / "report.html").read_text()
    for command in ("status", "report", "run"):
        capsys.readouterr()
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert main(["bisect", command]) == 0
        assert "\x1b[31m●\x1b[0m" in capsys.readouterr().out  # a patch in a set that is bad
        assert main(["--no-color", "bisect", command]) == 0
        assert "\x1b[" not in capsys.readouterr().out
    assert main(["bisect", "report", "--markdown"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("**second: breaks it; 1-minimal")
    for text in (said, (tmp_path / "report.html").read_text()):
        assert str(tmp_path) not in text
        assert "…/probe.sh" in text
        assert re.search(r"0\.28\.0, commit [0-9a-f]{40}", text)
    assert answer(capsys, "bisect", "why", "first")["verdict"] == "good"
    journal = bisects(tmp_path) / "demo/journal.jsonl"
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
    sets = answer(capsys, "bisect", "status")["sets"]
    trials = sum(len(one["trials"]) for one in sets)
    for left in range(trials, 0, -1):
        assert sum(len(one["trials"]) for one in answer(capsys, "bisect", "status")["sets"]) == left
        answer(capsys, "bisect", "back")  # the last trial, and no more
    assert codes(capsys, "bisect", "back") == ["NV805"]


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
    assert "culprit:\n  first   0.500\n  second  0.500\nthe time limit is reached" in capsys.readouterr().out
    assert main(["bisect", "status"]) == 0
    assert "  second  0.500\n" in capsys.readouterr().out
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["first"]


def test_artifacts_are_asked_for_where_engines_of_this_host_compile(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start, asked = ["bisect", "start", "demo", "--discard"], ["bisect", "run", "--artifacts", "2"]
    by_probe = ["--test", str(probe)]
    for test, code in (
        ([*by_probe, "--build-only"], "NV108"),
        (["--test-builtin", "aot-loads"], "NV108"),
        (by_probe, "NV860"),
    ):
        answer(capsys, *start, *test)
        bench = with_judge(monkeypatch, all_of(frozenset({"first"})))
        assert codes(capsys, *asked) == [code]
        assert bench.tries == []
    assert codes(capsys, *asked, "--on", "ray://head", "--registry", "r.example/x") == ["NV108"]
    spec = Path("images/demo.yaml")
    spec.write_text(spec.read_text().replace("enforce-eager: true", "enforce-eager: false"))
    anew = "builds may differ: each boot compiles code and kernels anew, with --on on any of the machines; `nvllm"
    assert anew in text(capsys, *start, *by_probe, "--flaky")
    answer(capsys, *start, *by_probe)
    assert answer(capsys, *asked)["found"]["culprits"] == ["first"]
    assert bench.artifacts is not None
    assert (bench.artifacts.count, bench.artifacts.directory) == (2, bisects(tmp_path) / "demo/artifacts")
    assert bench.artifacts.tried(("first", "second")) == len([one for one in bench.tries if len(one) == 2])


def test_bad_input_is_refused(probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["bisect", "start", "demo", "--test", str(probe)]
    assert codes(capsys, "bisect", "run") == ["NV107"]
    assert codes(capsys, "bisect", "start", "demo") == ["NV108"]
    assert codes(capsys, *start, "--bad", "secnd") == ["NV107"]
    assert codes(capsys, *start, "--bad", "second") == ["NV106"]
    assert codes(capsys, *start, "--bad", "none", "--good", "all") == ["NV108"]
    assert codes(capsys, *start, "--profile", "nope") == ["NV107"]
    for nothing in ("", " ", ","):
        assert codes(capsys, *start, "--bad", nothing) == ["NV108"]
    assert codes(capsys, "bisect", "start", "demo", "--test", str(probe.parent)) == ["NV802"]
    brought = ["bisect", "start", "demo", "--test-builtin", "boots"]
    assert codes(capsys, *brought, "--regress", "exit=3") == ["NV108"]
    assert codes(capsys, *brought, "--regress", "log=x", "--build-only") == ["NV108", "NV108"]
    answer(capsys, *start)
    assert codes(capsys, "bisect", "why", "nope") == ["NV805"]
    assert codes(capsys, "bisect", "back", "first") == ["NV805"]
    assert codes(capsys, "bisect", "report", "--markdown") == ["NV805"]
    with_judge(monkeypatch, all_of(frozenset({"nothing"})))
    assert codes(capsys, "bisect", "run") == ["NV801"]
    assert codes(capsys, "bisect", "plan") == ["NV801"]
    assert codes(capsys, *start) == ["NV807"]
    assert codes(capsys, "bisect", "report", "--markdown") == ["NV801"]
    probe.write_text("#!/bin/sh\nexit 1\n")
    assert codes(capsys, "bisect", "run") == ["NV803"]


def test_a_disk_that_fills_costs_no_journal(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit on the size of files stands for the disk that is full."""
    start = ["bisect", "start", "demo", "--test", str(probe)]
    answer(capsys, *start)
    with_judge(monkeypatch, all_of(frozenset({"second"})))
    found = answer(capsys, "bisect", "run")["found"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        assert codes(capsys, *start, "--discard") == ["NV806"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert answer(capsys, "bisect", "status")["found"] == found
    directory = bisects(tmp_path) / "demo"
    assert [one.name for one in directory.iterdir()] == ["journal.jsonl"]
    answer(capsys, *start, "--discard")
    answer(capsys, *start, "--discard")
    assert len(list(directory.glob("journal-*Z.jsonl"))) == 2
    assert answer(capsys, "bisect", "status")["found"] is None


def test_a_journal_of_another_image_is_not_gone_on_with(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    state = bisects(tmp_path)
    (state / "demo").rename(state / "other")
    for image in ([], ["--image", "other"]):
        for command in (["run"], ["status"], ["back"], ["skip", "first"], ["plan"], ["report"]):
            assert codes(capsys, "bisect", *command, *image) == ["NV803"]
    assert not bench.builds
    assert "it is not finished" in text(capsys, "bisect", "replay", str(state / "other/journal.jsonl"))


def test_a_bisect_of_another_series_is_not_gone_on_with(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    found = Project(Path.cwd())
    shorten_series(found)
    write_lock(found)
    assert codes(capsys, "bisect", "run") == ["NV803"]
    assert not bench.builds


def test_the_evidence_is_shown_although_an_end_is_wrong(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    with_judge(monkeypatch, all_of(frozenset({"nothing"})))
    assert codes(capsys, "bisect", "run") == ["NV801"]
    page, journal = tmp_path / "report.html", bisects(tmp_path) / "demo/journal.jsonl"
    assert text(capsys, "bisect", "report", "--html", str(page)) == f"wrote {page}\n"
    assert "NV801 end not as declared: the bad end" in page.read_text()
    for command in (["status"], ["report"], ["replay", str(journal)]):
        said = text(capsys, "bisect", *command)
        assert "second  " in said
        assert "NV801 end not as declared" in said
        found = answer(capsys, "bisect", *command)
        assert [one["code"] for one in found["refusals"]] == ["NV801"]
        assert [(one["verdict"], len(one["trials"])) for one in found["sets"]] == [("good 3 of 3", 3)] * 2


def test_a_page_that_cannot_be_written_is_refused(
    probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    for page in (tmp_path / "nowhere/report.html", tmp_path):
        assert codes(capsys, "bisect", "report", "--html", str(page)) == ["NV920"]


def test_an_end_that_does_not_follow_is_refused(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    with_judge(monkeypatch, all_of(frozenset({"second"})))
    answer(capsys, "bisect", "run")
    path = bisects(tmp_path) / "demo/journal.jsonl"
    assert text(capsys, "bisect", "replay", str(path)).endswith("the decisions are the same; the end is the same\n")
    *lines, end = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines))
    assert text(capsys, "bisect", "replay", str(path)).endswith("the decisions are the same; its end is not recorded\n")
    path.write_text("".join([*lines, end.replace("second", "first")]))
    assert codes(capsys, "bisect", "replay", str(path)) == ["NV804"]


def test_patches_that_conflict_are_in_no_set(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Project(Path.cwd())
    path = found.series("v1") / "series.yaml"
    path.write_text(path.read_text().replace("requires: [first]", "conflicts: [first]"))
    write_lock(found)
    start = ["bisect", "start", "demo", "--test", str(probe)]
    assert codes(capsys, *start) == ["NV106"]  # all of them
    answer(capsys, *start, "--bad", "second")
    journal = bisects(tmp_path) / "demo/journal.jsonl"
    begun = json.loads(journal.read_text())
    assert begun["conflicts"] == {"first": ["second"], "second": ["first"]}
    for command in ("why", "skip"):
        assert codes(capsys, "bisect", command, "first,second") == ["NV805"]
    with_judge(monkeypatch, all_of(frozenset({"second"})))
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["second"]


def test_a_verdict_by_hand_counts_and_is_accepted_by_replay(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--repeats", "1", "--test", str(probe))
    bench = with_judge(monkeypatch, all_of(frozenset({"first"})))
    answer(capsys, "bisect", "good", "none")
    answer(capsys, "bisect", "bad", "first,second")
    answer(capsys, "bisect", "good", "first")  # the user knows better than the probe
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["second"]
    assert bench.tries == []
    answer(capsys, "bisect", "replay", str(bisects(tmp_path) / "demo/journal.jsonl"))
    answer(capsys, "bisect", "back", "first")
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["first"]


def test_a_corrected_probe_keeps_the_verdicts_that_still_hold(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first probe called a set bad whose engine was only slow."""
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    with_judge(monkeypatch, all_of(frozenset({"first"})))
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["first"]
    assert codes(capsys, "bisect", "probe", "--keep", "good") == ["NV108"]  # nothing is corrected
    probe.write_text("#!/bin/sh\nexit 1\n")
    assert codes(capsys, "bisect", "run") == ["NV803"]
    assert answer(capsys, "bisect", "probe", "--keep", "good", "--image", "demo")["kept"] == 3  # the good end's
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    found = answer(capsys, "bisect", "run")["found"]
    assert (found["culprits"], found["certified"]) == (["second"], True)
    assert frozenset() not in bench.tries
    assert "the probe was corrected; verdicts of the one before that still hold: the good ones" in text(
        capsys, "bisect", "status"
    )
    assert answer(capsys, "bisect", "status")["corrections"] == ["good"]
    answer(capsys, "bisect", "replay", str(bisects(tmp_path) / "demo/journal.jsonl"))
    page = tmp_path / "report.html"
    text(capsys, "bisect", "report", "--html", str(page))
    assert page.read_text().count(", withdrawn") == 6
    assert [(one.kept, one.probe.command) for one in corrections(tmp_path)] == [("good", (str(probe),))]

    other = tmp_path / "other.sh"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    said = text(capsys, "bisect", "probe", "--keep", "none", "--regress", "exit=3", "--", str(other), "--slow")
    assert said == f"trials that still hold: 0; withdrawn: {len(bench.tries) + 3}\nnext: nvllm bisect run\n"
    answer(capsys, "bisect", "run")
    last = corrections(tmp_path)[-1]
    assert (last.kept, last.probe.regress, last.probe.command) == ("none", "exit=3", (str(other), "--slow"))


def test_the_answer_of_golden_is_corrected_as_a_probe_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "answer"
    wanted.write_text("hello\n")
    answer(capsys, "bisect", "start", "demo", "--test-builtin", "golden", str(wanted))
    with_judge(monkeypatch, all_of(frozenset({"first"})))
    answer(capsys, "bisect", "run")
    wanted.write_text("hallo\n")
    assert codes(capsys, "bisect", "probe", "--keep", "none", "--regress", "exit=3") == ["NV108"]
    assert answer(capsys, "bisect", "probe", "--keep", "none")["probe"] == ["builtin:golden", str(wanted)]
    assert [one.kept for one in corrections(tmp_path)] == ["none"]


def test_a_set_is_served_to_be_looked_at_and_its_verdict_given_by_the_name_that_was_said(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--repeats", "1", "--test", str(probe))
    bench = with_judge(monkeypatch, all_of(frozenset({"first"})))
    said = text(capsys, "bisect", "serve", "first")
    assert "ready: nvllm-look-" in said
    assert "at http://127.0.0.1:8000, with first\n" in said
    (command,) = [line.split()[1:] for line in said.splitlines() if " bisect bad " in line]
    assert answer(capsys, *command)["patches"] == ["first"]
    assert answer(capsys, "bisect", "serve", "first")["patches"] == ["first"]
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["first"]
    assert bench.builds.count(frozenset({"first"})) == 2  # both to be looked at; the search needs none
    assert frozenset({"first"}) not in bench.tries
    assert codes(capsys, "bisect", "serve", "nope") == ["NV805"]


def test_why_shows_the_trials_that_count(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    with_judge(monkeypatch, all_of(frozenset({"second"})))
    answer(capsys, "bisect", "run")
    answer(capsys, "bisect", "back", "first")
    assert answer(capsys, "bisect", "why", "first")["trials"] == []


def test_a_program_with_arguments_is_a_probe(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", "start", "demo", "--", str(probe), "--fast", "two words"]) == 0
    start = journal.load(bisects(tmp_path) / "demo/journal.jsonl").state.start
    assert start.probe.command == (str(probe), "--fast", "two words")
    assert codes(capsys, "bisect", "start", "demo", "--test", str(probe), "--test-builtin", "boots") == ["NV108"]


def test_what_could_not_be_tested_is_tried_again_on_request(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--repeats", "1", "--test", str(probe))
    boots = [False] * 3
    judge = all_of(frozenset({"second"}))

    def failing(chosen: frozenset[str]) -> Trial:
        if chosen == {"first"} and boots:
            boots.pop()
            return Trial("untestable", "NV703", "boot", said="out of memory", run="/run/there")
        return judge(chosen)

    with_judge(monkeypatch, failing)
    assert answer(capsys, "bisect", "run")["found"]["exact"] is False
    given_up = "was given up, untestable (boot); to try it again: nvllm bisect retry"
    assert given_up in text(capsys, "bisect", "status")
    output = answer(capsys, "bisect", "why", "first")["output"]
    assert output == [{"said": "out of memory", "run": "/run/there"}] * 3
    assert "trial 3, run directory /run/there\n    out of memory\n" in text(capsys, "bisect", "why", "first")
    answer(capsys, "bisect", "retry", "first")
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["second"]


def test_a_limit_of_trials_holds_and_can_be_raised(
    probe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = answer(capsys, "bisect", "start", "demo", "--max-trials", "7", "--test", str(probe))
    assert begun["forecast"]["most_trials"] == 7
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    found = answer(capsys, "bisect", "run")["found"]
    assert (found["certified"], found["stopped"]) == (False, "the limit of 7 trials is reached (--max-trials)")
    assert len(bench.tries) == 7
    assert answer(capsys, "bisect", "list")["bisects"][0]["found"] == "not finished"
    assert answer(capsys, "bisect", "run", "--max-trials", "50")["found"]["certified"] is True
    (listed,) = answer(capsys, "bisect", "list")["bisects"]
    assert (listed["image"], listed["found"]) == ("demo", "second")
    assert listed["trials"] == len(bench.tries)
    assert "demo" in text(capsys, "bisect", "list")


def test_a_journal_from_elsewhere_is_adopted_and_continued(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    bench = with_judge(monkeypatch, all_of(frozenset({"second"})))
    found = answer(capsys, "bisect", "run")["found"]
    place = bisects(tmp_path) / "demo/journal.jsonl"
    whole = place.read_bytes()
    lines = whole.splitlines(keepends=True)
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_bytes(b"".join(lines[:-4]) + b'{"torn')
    assert codes(capsys, "bisect", "replay", str(elsewhere), "--adopt") == ["NV807"]
    assert place.read_bytes() == whole
    place.unlink()
    said = text(capsys, "bisect", "replay", str(elsewhere), "--adopt")
    assert f"its probe: {probe}\nnext: nvllm bisect run --image demo\n" in said
    assert place.read_bytes() == b"".join(lines[:-4])
    tries = len(bench.tries)
    assert answer(capsys, "bisect", "run")["found"] == found
    assert len(bench.tries) == tries  # what the adopted journal lacks is in the cache
    elsewhere.write_bytes(lines[0].replace(b'"bad"', b'"BAD"') + lines[1][:-9] + b"\n")
    place.unlink()
    assert set(codes(capsys, "bisect", "replay", str(elsewhere), "--adopt")) == {"NV804"}
    assert not place.exists()


@pytest.mark.parametrize(("image", "code"), [("../../evil", "NV108"), ("absent", "NV107")])
def test_the_image_of_an_adopted_journal_is_one_of_the_project(
    probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], image: str, code: str
) -> None:
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    start = journal.load(bisects(tmp_path) / "demo/journal.jsonl").state.start
    elsewhere = tmp_path / "elsewhere.jsonl"
    journal.create(elsewhere, replace(start, image=image))
    assert codes(capsys, "bisect", "replay", str(elsewhere), "--adopt") == [code]
    assert not (tmp_path / "home/evil").exists()


# Two clones side by side


@pytest.fixture
def clones(probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The project of the test, and a copy of it; the test stands in the first."""
    first, second = Path.cwd(), tmp_path / "second"
    shutil.copytree(first, second)
    return first, second


def test_a_second_clone_never_sees_the_bisect_of_the_first(
    clones: tuple[Path, Path], probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    first, second = clones
    start = ["bisect", "start", "demo", "--test", str(probe)]
    answer(capsys, *start)
    before = (bisects(tmp_path) / "demo/journal.jsonl").read_bytes()
    monkeypatch.chdir(second)
    for command in (["run"], ["status"], ["back"], ["plan"], ["report"]):
        assert codes(capsys, "bisect", *command) == ["NV107"], command
        assert codes(capsys, "bisect", *command, "--image", "demo") == ["NV107"], command
    assert answer(capsys, "bisect", "list")["bisects"] == []
    answer(capsys, *start, "--set")  # nothing is in its way
    with_judge(monkeypatch, all_of(frozenset({"second"})))
    assert answer(capsys, "bisect", "run")["found"]["culprits"] == ["second"]
    monkeypatch.chdir(first)
    assert (bisects(tmp_path) / "demo/journal.jsonl").read_bytes() == before
    assert answer(capsys, "bisect", "status")["found"] is None


def test_a_clone_that_is_reached_by_a_link_is_the_same_project(
    clones: tuple[Path, Path], probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    answer(capsys, "bisect", "start", "demo", "--test", str(probe))
    (link := tmp_path / "link").symlink_to(clones[0])
    assert answer(capsys, "--project", str(link), "bisect", "status")["image"] == "demo"


def test_both_may_search_at_once(
    clones: tuple[Path, Path], probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    start = ["bisect", "start", "demo", "--test", str(probe)]
    places_of = places({"NVLLM_HOME": str(tmp_path / "home")})
    holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm bisect of demo")
    with locks.acquire_all(places_of.locks, [Key("bisect", f"demo-{Project(clones[1]).id}")], holder):
        answer(capsys, *start)
        monkeypatch.chdir(clones[1])
        assert codes(capsys, *start) == ["NV508"]
