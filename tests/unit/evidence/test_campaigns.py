"""Each kind of campaign, through the command line: the gates before it, the watchdog during it, and what is kept."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nvllm.core import clock, durable
from nvllm.core.plan import LaunchPlan
from nvllm.evidence.records import Kind
from nvllm.host import facts, gate_records
from support import question_samples
from support.campaign_world import KINDS, Campaign, campaign
from support.gate_samples import DAY, HERE, record
from support.plansamples import FrontEnd, edit
from support.rows import longer, samples

GIB = 2**30


@pytest.fixture
def made(
    tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Campaign:
    return campaign(tmp_path, front, monkeypatch, capsys)


def codes(said: Mapping[str, Any]) -> list[str]:
    return [one["code"] for one in said.get("refusals", [])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_campaign_on_a_host_that_may_run_it(made: Campaign, kind: Kind) -> None:
    status, said = made.run(kind)
    assert (status, codes(said), len(made.verdicts)) == (0, [], 2)
    assert all(one["memory"]["container"] == GIB for one in said["result"]["arms"])
    assert len([*made.output.glob("arms/*/*/memory.jsonl")]) == 2


def test_a_run_until_it_is_decided_ends_when_nothing_is_open(made: Campaign) -> None:
    """One profile alone is compared with nothing: the first look ends it, and the same command again runs nothing."""
    for _ in range(2):
        status, document = made.run("eval", "--until-decided", "--runs", "8")
        assert (status, codes(document), len(made.verdicts), len(made.engine.plans)) == (0, [], 3, 3)


def evaluating(made: Campaign) -> Path:
    """Let the profile `eager` be asked as another one, and return the leg of its first arm."""
    spec = made.project.spec("demo")
    (eager,) = re.findall(r"^  eager:\n(?:    .*\n)+", spec.read_text(), re.MULTILINE)
    other = eager.replace("  eager:", "  piecewise:").replace("max-model-len: 128", "max-model-len: 64")
    spec.write_text(spec.read_text() + other)
    edit(spec, eager, eager.replace("    port: 8000\n", "    port: 8000\n    campaign: {evaluate-as: piecewise}\n"))
    return made.output / "arms" / "eager" / "run-1"


def test_a_sweep_asks_the_questions_of_the_profile_that_the_spec_names(made: Campaign) -> None:
    leg = evaluating(made)
    for _ in range(2):  # the second time nothing is run again
        status, document = made.run("sweep")
        assert (status, codes(document), len(made.verdicts), len(made.engine.plans)) == (0, [], 2, 4)
    assert [one.profile for one in made.engine.plans] == ["eager", "piecewise"] * 2
    verdict = json.loads((leg / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["asked"], verdict["figures"]["output tokens/s"]) == ("passed", 4, 42.5)
    assert verdict["evaluation"]["profile"] == "piecewise"
    assert verdict["evaluation"]["container"] != verdict["container"]
    names = [one["name"] for one in verdict["checks"]]
    assert names[len(names) // 2 :] == [f"evaluation: {one}" for one in names[: len(names) // 2]]
    assert {one.name for one in leg.glob("evaluation/*")} >= {"engine.log", "memory.jsonl", "metrics-after.txt"}
    noted = "eager was asked the questions as profile piecewise, in an engine of its own"
    assert noted in document["result"]["notes"]
    assert noted in (made.output / "report.html").read_text()
    status, document = made.run("sweep", "--dry-run")
    assert document["result"]["evaluated"] == {"eager": "piecewise", "eager-2": "piecewise"}


def test_after_a_load_that_failed_nothing_is_asked_of_the_other_profile(made: Campaign) -> None:
    leg = evaluating(made)
    vars(made.engine)["read_in"] = lambda *_: None
    status, document = made.run("sweep")
    assert (status, codes(document), len(made.engine.plans)) == (1, ["NV854", "NV854"], 2)
    assert "evaluation" not in json.loads((leg / "verdict.json").read_text())


def test_a_leg_whose_second_engine_does_not_start_is_invalid(made: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    leg, start = evaluating(made), made.engine.start

    def started(plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        made.engine.broken = plan.sentinels if plan.profile == "piecewise" else None
        return start(plan, labels)

    monkeypatch.setattr(made.engine, "start", started)
    status, document = made.run("sweep")
    assert (status, codes(document)) == (1, ["NV854", "NV854"])
    verdict = json.loads((leg / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["checks"][-1]["name"]) == ("invalid", "evaluation: start")


def test_five_runs_in_one_engine_whose_fourth_collapses(made: Campaign) -> None:
    questions = len(question_samples.write(made.questions, 20).read_text().splitlines())
    made.answers(lambda _, number: not 3 * questions < number <= 4 * questions)
    again = ["eval", "gsm8k", "--image", "demo", "--profile", "eager", "--data", str(made.questions), "--timeout", "30"]
    again += ["--runs-per-engine", "5", "--engines", "1", "--output", str(made.output)]
    for _ in range(2):  # the second time nothing is run again
        status, document = made.nvllm(again)
        assert (status, codes(document), len(made.verdicts), len(made.engine.plans)) == (0, [], 5, 1)
    (drifting,) = document["result"]["findings"]
    assert (drifting["factor"], drifting["finding"]) == ("engine 1, runs 2 to 5 / run 1", "loss")
    assert drifting["text"].startswith("20, 20, 20, 0, 20 of 20 right, run after run; engine 1, run 4 / run 1: fewer")
    (engine,) = document["result"]["engines"]
    assert [(one["turn"], one["correct"]) for one in engine["runs"]] == [(1, 20), (2, 20), (3, 20), (4, 0), (5, 20)]
    assert all(one["kv_usage"] == 0 and one["peak_memory"] == GIB for one in engine["runs"])
    assert {one["marks"][0] for one in document["result"]["questions"]} == {"+++x+"}
    page, text = (made.output.joinpath(name).read_text() for name in ("report.html", "ANALYSIS.md"))
    assert page.count("+++x+") == text.count("+++x+") == 20


def test_an_engine_that_was_not_asked_all_its_runs_is_asked_again_from_the_first(made: Campaign) -> None:
    asked = ["--runs-per-engine", "2"]
    assert made.run("eval", *asked)[0] == 0
    assert (len(made.verdicts), len(made.engine.plans)) == (4, 2)
    made.verdicts[-1].unlink()
    assert made.run("eval", *asked)[0] == 0
    assert (len(made.verdicts), len(made.engine.plans)) == (4, 3)


def test_engines_that_are_counted_twice_are_refused(made: Campaign) -> None:
    status, document = made.run("eval", "--engines", "3")
    assert (status, codes(document), document["refusals"][0]["found"]) == (2, ["NV108"], "--runs 2 and --engines 3")


def test_a_dry_run_says_which_runs_share_an_engine(made: Campaign) -> None:
    status, document = made.run("eval", "--runs-per-engine", "2", "--dry-run")
    assert (status, [one["run"] for one in document["result"]["legs"]]) == (0, [1, 2, 3, 4])


def keep(made: Campaign, age: float = 0.0, **changes: Any) -> None:
    measured = clock.stamp(time.time() - age * DAY)
    gate_records.write(made.places.gates, record(**{"measured": measured, "machine": HERE, **changes}))


UNSATISFYING: Mapping[str, Mapping[str, Any] | None] = {
    "no such run": None,
    "31.0 days ago": {"age": 31},
    "with looser limits: --swap": {"limits": {"swap": 2.0 * GIB}},
    "failed on ": {"outcome": "failed"},
    "not measured on ": {"outcome": "not measured"},
}


@pytest.mark.parametrize(
    ("kind", "found"),
    samples(
        [(kind, "no such run") for kind in KINDS], [("ablate", one) for one in UNSATISFYING if one != "no such run"]
    ),
)
def test_no_container_starts_without_the_gate_that_the_profile_requires(made: Campaign, kind: Kind, found: str) -> None:
    made.require("{memory: {max-age: 30, band: 4GiB}}")
    changes = UNSATISFYING[found]
    if changes is not None:
        keep(made, **changes)
    status, said = made.run(kind)
    assert (status, codes(said), made.engine.plans) == (3, ["NV516"], [])
    (refusal,) = said["refusals"]
    assert found in refusal["found"]
    assert refusal["cure"] == "nvllm gate memory --bands 4G"
    keep(made)
    assert made.run(kind)[0] == 0
    assert len(made.verdicts) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_watchdog_ends_a_campaign_which_goes_on_with_the_command_of_the_cure(
    made: Campaign, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = {"MemAvailable": 8 * GIB}
    monkeypatch.setattr(facts, "memory", lambda: memory)

    def lost(*_: object) -> None:
        """Lose the host's memory in the second leg, and wait for the end of its engine."""
        if len(made.engine.plans) == 2:
            memory["MemAvailable"] = 1
            deadline = time.monotonic() + 10
            while made.engine.running and time.monotonic() < deadline:
                time.sleep(0.01)

    made.engine.at_load = made.front.at_request = lost
    status, said = made.run(kind)
    assert (status, codes(said)) == (3, ["NV519"])
    (first,) = made.verdicts
    before = first.read_bytes()
    cure = said["refusals"][0]["cure"].removeprefix("stop what uses memory, and go on: ")
    memory["MemAvailable"] = 8 * GIB
    made.engine.at_load, made.front.at_request = lambda: None, None
    status, said = made.nvllm(shlex.split(cure)[1:])
    assert (status, codes(said), len(made.verdicts), len(made.engine.plans)) == (0, [], 2, 3)
    assert first.read_bytes() == before


@longer("kind", ["ablate"], ["sweep"])
def test_a_run_that_ends_at_any_write_goes_on(made: Campaign, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round ends one write later than the round before: every write of a run is the last one once."""
    write = durable.replace
    for last in itertools.count(1):
        made.output, left = made.output.with_name(f"run-{last}"), iter(range(last))

        def ends(path: Path, *args: Any, left: Iterator[int] = left, **named: Any) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            write(path, *args, **named)

        with monkeypatch.context() as patch:
            patch.setattr(durable, "replace", ends)
            status = made.interrupted(kind)
        assert status in {0, 130}
        assert made.run(kind)[0] == 0
        assert (len(made.verdicts), (made.output / "report.html").is_file()) == (2, True)
        if status == 0:
            break
    assert last > 20
