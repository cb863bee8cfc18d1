"""The runner, with an engine that is made up: what is written, what goes on, and what a planted mistake does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import Refusal, Refused
from nvllm.evidence import runner
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.evidence.records import Comparison
from nvllm.host.facts import ContainerState
from nvllm.trials.answers import Answered, unanswered
from nvllm.trials.probing import QuestionProbe
from nvllm.trials.questions import Question
from support.evidence_world import BUSY, World, probe, world
from support.plansamples import FrontEnd


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd) -> World:
    return world(tmp_path, front, probe())


def outcomes(found: Comparison) -> dict[str, str]:
    return {one.name: one.outcome for one in found.arms}


def test_every_leg_is_a_fresh_container_and_leaves_its_evidence(made: World) -> None:
    found = made.runner.run()
    assert outcomes(found) == dict.fromkeys(("none", "a", "b", "a+b"), "passed")
    assert [one.sentinels for one in made.engine.plans] == [(), ("a",), ("b",), ("a", "b")]
    assert made.engine.ended.count("stopped") == 4
    leg = made.directory.leg("a+b", 1)
    assert {one.name for one in leg.iterdir()} >= {
        "engine.log",
        "evidence.jsonl",
        "metrics-after.txt",
        "metrics-before.txt",
        "metrics-between.txt",
        "perq.jsonl",
        "plan.json",
        "timeline.json",
        "verdict.json",
    }
    assert (made.directory.path / "summary.md").read_text().startswith("# Ablation of demo, eager\n")
    assert (made.directory.path / "ANALYSIS.md").read_text().startswith("# Ablation of demo, eager: what follows\n")
    assert (made.directory.path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((made.directory.path / "comparison.json").read_text())["schema"] == "nvllm.evidence-comparison/1"


def test_a_listing_that_the_engine_lost_is_asked_for_again(made: World) -> None:
    listed, lost = made.engine.run_files, iter([list[str](), []])

    def run_files(container: str, interpreter: str) -> list[str]:
        found = next(lost, None)
        return listed(container, interpreter) if found is None else found

    vars(made.engine)["run_files"] = run_files
    assert set(outcomes(made.runner.run()).values()) == {"passed"}


def test_all_arms_of_an_ablation_are_for_development(made: World) -> None:
    """The last one is the profile as it is."""
    made.runner.run()
    assert [one.dev for one in made.engine.plans] == [True] * 4


def test_an_evaluation_runs_the_profile_as_it_is(made: World) -> None:
    made.runner.manifest = replace(made.runner.manifest, kind="eval", ablated=(), arms=made.runner.manifest.arms[-1:])
    made.runner.run()
    assert [(one.dev, one.sentinels) for one in made.engine.plans] == [(False, ("a", "b"))]


def test_an_engine_that_dies_while_it_is_asked_makes_its_arm_invalid(made: World) -> None:
    def die(_body: bytes) -> None:
        if len(made.front.asked) == 3:  # the probe, then the second question
            made.engine.status = ContainerState(139, out_of_memory=False)
            made.front.status = 500

    made.front.at_request = die
    found = made.runner.run()
    assert outcomes(found)["none"] == "invalid"
    verdict = made.directory.verdict("none", 1)
    assert verdict is not None
    assert [one.name for one in verdict.checks if not one.holds] == ["directory", "answers"]


def test_a_dead_sentinel_makes_its_arms_invalid(made: World) -> None:
    made.engine.dead = {"a"}
    found = made.runner.run()
    assert outcomes(found) == {"none": "passed", "a": "invalid", "b": "passed", "a+b": "invalid"}


def test_a_patch_that_is_always_on_makes_the_arms_without_it_invalid(made: World) -> None:
    made.engine.stuck = {"b"}
    found = made.runner.run()
    assert outcomes(found) == {"none": "invalid", "a": "invalid", "b": "passed", "a+b": "passed"}
    verdict = made.directory.verdict("none", 1)
    assert verdict is not None
    assert verdict.reason == "the harness failed: sentinel b (enabled=false, first_fire)"


def test_another_file_in_the_directory_is_found(made: World) -> None:
    made.engine.extra = ["/run/nvllm/c"]
    assert set(outcomes(made.runner.run()).values()) == {"invalid"}


def test_a_cache_that_does_not_drain_is_found(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "REST", 0.05)
    monkeypatch.setattr(runner, "LOOK", 0.01)

    def leak(_body: bytes) -> None:
        made.front.metrics = (
            BUSY if len(made.front.asked) == 5 else made.front.metrics
        )  # the probe, then four questions

    made.front.at_request = leak
    found = made.runner.run()
    assert outcomes(found)["none"] == "invalid"
    verdict = made.directory.verdict("none", 1)
    assert verdict is not None
    assert [one.name for one in verdict.checks if not one.holds] == ["KV cache drains"]


def test_an_engine_that_does_not_start_is_an_invalid_leg(made: World) -> None:
    made.engine.broken = ("a",)
    found = made.runner.run()
    assert outcomes(found) == {"none": "passed", "a": "invalid", "b": "passed", "a+b": "passed"}
    verdict = made.directory.verdict("a", 1)
    assert verdict is not None
    assert verdict.reason.startswith("NV703")


def test_what_is_no_leg_s_fault_ends_the_run_which_goes_on_later(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = made.engine.start
    calls: list[str] = []

    def start(plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        calls.append("")
        if len(calls) == 3:
            # Of two refusals at once, the one that is the host's fault counts.
            broken = Refusal("NV703", "the engine", "a start", "it ended", "look at its log")
            raise Refused([broken, Refusal("NV510", "engine", "one that answers", "none", "start it")])
        return tried(plan, labels)

    monkeypatch.setattr(made.engine, "start", start)
    with pytest.raises(Refused):
        made.runner.run()
    assert made.directory.verdict("a", 1) is not None
    assert made.directory.verdict("b", 1) is None
    assert not (made.directory.path / "comparison.json").exists()
    made.runner.run()
    assert len(calls) == 5  # two, the one that failed, and two more


def test_below_the_floor_a_leg_has_failed(tmp_path: Path, front: FrontEnd) -> None:
    found = world(tmp_path, front, probe(floor=50)).runner.run()
    assert set(outcomes(found).values()) == {"failed"}
    (verdict,) = [EvidenceDirectory(tmp_path / "evidence").verdict("a", 1)]
    assert verdict is not None
    assert verdict.reason == "0 of 4 correct, and the floor is 50 %"


def test_a_leg_says_how_many_answers_were_too_late(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(_probe: object, _plan: LaunchPlan, run: int, question: Question, _timeout: float) -> Answered:
        return replace(unanswered(run, "no answer in 30 s", question.id), timed_out=True)

    monkeypatch.setattr(QuestionProbe, "answer", late)
    compared = made.runner.run()
    verdict = made.directory.verdict("a", 1)
    assert verdict is not None
    assert (verdict.timeouts, verdict.outcome) == (4, "passed")
    assert runner.leg_text(verdict).endswith("0 of 4 correct, 4 ran into the timeout, 0.0 tokens/s")
    assert "a: 4 of 4 answers ran into the timeout; they count as wrong" in compared.notes
