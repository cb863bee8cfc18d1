"""Compiles of one key: a bad one is found and named, others are not, and what the method can see."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core import workload
from nvllm.evidence import conclusion, intervals
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.records import ArmState, Comparison
from support import evidence_samples, question_samples
from support.campaign_world import Campaign, campaign
from support.evidence_samples import answer, verdict
from support.plansamples import FrontEnd, edit
from support.rows import longer

QUESTIONS = 50
Start = Sequence[bool]
KEY = "c" * 64


def compared(artifacts: Sequence[Sequence[Start]], trees: str = "123456789") -> Comparison:
    """Return what follows from ARTIFACTS: for each of them its starts, with an answer for each question."""
    arms, states = [], []
    for number, starts in enumerate(artifacts, 1):
        legs = []
        for run, right in enumerate(starts, 1):
            answers = tuple(answer(run, question, correct=each) for question, each in enumerate(right, 1))
            told = verdict(f"artifact-{number}", run, answers)
            legs.append((replace(told, tree=trees[number - 1] * 64, compile_key=KEY), answers))
        arms.append(ArmLegs(f"artifact-{number}", (), tuple(legs)))
        states.append(ArmState(f"artifact-{number}", "eager", (), (), number))
    made = evidence_samples.manifest((), runs=len(artifacts[0]), questions=len(artifacts[0][0]))
    return conclusion.of(replace(made, arms=tuple(states), cold=False), arms)


def right(count: int, questions: int = QUESTIONS) -> Start:
    return [number < count for number in range(questions)]


def bad(told: Comparison) -> list[str]:
    return [one.arm for one in told.compiles if one.bad]


def test_the_artifact_whose_starts_answer_wrongly_is_named_and_kept_beside_a_good_one() -> None:
    good = [right(count) for count in (47, 47, 46, 47, 47)]
    told = compared([good, [right(count) for count in (11, 47, 9, 12, 10)], good, good, good])
    assert bad(told) == ["artifact-2"]
    (finding,) = [one for one in told.findings if one.finding == "loss"]
    assert finding.factor == "artifact-2 / the others"
    assert finding.text.startswith(
        f"this artifact is bad, tree {'2' * 64}: fewer correct answers: correct -58.0 points"
    )
    assert told.compiles[1].right == (11, 47, 9, 12, 10)
    assert told.spread is not None
    assert (round(told.spread.between, 2), round(told.spread.within, 2)) == (0.25, 0.15)
    assert told.notes[-2:] == (
        f"kept in the run for study, bad: artifacts/{KEY}-2/{'2' * 64}",
        f"kept in the run for study, good: artifacts/{KEY}-1/{'1' * 64}",
    )


def test_five_of_five_against_one_of_five_is_enough_for_a_probe_with_one_answer() -> None:
    """What the fork saw: engines with one compile answered rightly in every start, with the other in one of five."""
    told = compared([[[True]] * 5, [[True], [False], [False], [False], [False]]])
    assert bad(told) == []  # of two artifacts five starts each are not enough for that
    told = compared([[[True]] * 5, [[True], [False], [False], [False], [False]], [[True]] * 5])
    assert bad(told) == ["artifact-2"]


def test_a_second_bad_one_does_not_hide_the_first() -> None:
    good = [right(47)] * 4
    assert sorted(bad(compared([good, [right(11)] * 4, good, [right(20)] * 4, good]))) == ["artifact-2", "artifact-4"]


def test_starts_that_are_alike_do_not_make_a_few_questions_a_finding() -> None:
    """Every start of each artifact answers alike, byte for byte: three questions of fifty may fall anywhere."""
    told = compared([[right(47)] * 5, [right(44)] * 5, [right(47)] * 5])
    assert (bad(told), {one.finding for one in told.findings}) == ([], {"unknown"})


def test_artifacts_that_are_alike_are_neutral_and_not_after_one_start() -> None:
    alike = [right(150, 160)] * 3
    assert {one.finding for one in compared([alike] * 3).findings} == {"neutral"}
    assert {one.finding for one in compared([alike[:1]] * 3).findings} == {"unknown"}


def test_one_tree_from_two_compiles_is_said() -> None:
    told = compared([[right(47)] * 3] * 3, trees="121")
    assert "artifact-1, artifact-3 are one tree, byte for byte: 111111111111" in told.notes


def test_what_a_rearrangement_is_worth() -> None:
    assert intervals.rearranged([0.0] * 3, [1.0] * 6) == pytest.approx(1 / 84)
    assert intervals.rearranged([0.0] * 5, [1.0] * 5) == pytest.approx(2 / 252)
    assert intervals.rearranged([1.0] * 5, [1.0] * 5) == 1.0
    assert intervals.rearranged([0.0] * 10, [1.0] * 40) == 1 / 20_001  # too many to try them all
    assert intervals.rearranged([], [1.0]) == 1.0


@longer(("runs", "false"), [(10, 2)], [(100, 8)])
def test_alike_artifacts_are_called_bad_in_one_run_of_twenty_at_most_and_a_bad_one_is_seen(
    runs: int, false: int
) -> None:
    drawn = random.Random(7)

    def starts(rate: float, sway: float) -> list[Start]:
        """Return three starts, each with a rate of its own around RATE."""
        rates = [min(1.0, max(0.0, drawn.gauss(rate, sway))) for _ in range(3)]
        return [[drawn.random() < each for _ in range(20)] for each in rates]

    for rate, sway in ((0.9, 0.0), (0.5, 0.2)):
        called = sum(bool(bad(compared([starts(rate, sway) for _ in range(4)]))) for _ in range(runs))
        assert called <= false, (rate, sway, called)
    seen = sum(
        "artifact-1" in bad(compared([starts(0.2, 0.1), *(starts(0.9, 0.03) for _ in range(3))]))
        for _ in range(runs // 2)
    )
    assert seen >= 0.9 * (runs // 2), seen


# Through the command line


@pytest.fixture
def made(
    tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Campaign:
    world = campaign(tmp_path, front, monkeypatch, capsys)
    monkeypatch.setattr(workload, "SETTINGS", workload.SETTINGS[:1])
    edit(world.project.spec("demo"), "      enforce-eager: true\n", "      max-num-seqs: 2\n")
    world.front.longest = 128
    return world


def words(made: Campaign, *more: str) -> list[str]:
    data = ["--data", str(question_samples.write(made.questions, 12)), "--timeout", "30", "--length", "16"]
    return ["ablate", "demo", "--profile", "eager", "--probe", "gsm8k", *data, "--output", str(made.output), *more]


def test_a_bad_compile_is_found_named_and_kept_from_gc(made: Campaign) -> None:
    """The engine is made up: those that loaded the second compile answer wrongly."""
    made.answers(lambda _engine, _number: made.engine.loaded != 2)
    made.output = made.places.state / "evidence" / "run"  # where a run is that names no --output
    command = words(made, "--artifacts", "3", "--runs", "3")
    for _ in range(2):  # the second time nothing is compiled or run again
        status, document = made.nvllm(command)
        assert (status, document.get("refusals", []), len(made.engine.benches), len(made.verdicts)) == (0, [], 3, 9)
    result = document["result"]
    assert [(one["right"], one["bad"]) for one in result["compiles"]] == [
        ([12] * 3, False),
        ([0] * 3, True),
        ([12] * 3, False),
    ]
    hashes = [one["tree"] for one in result["compiles"]]
    assert len({*hashes}) == 3
    lost = {one["factor"]: one for one in result["findings"]}["artifact-2 / the others"]
    assert lost["finding"] == "loss"
    assert lost["text"].startswith(f"this artifact is bad, tree {hashes[1]}: ")
    vars(made.engine)["stored"] = tuple  # it has no images
    assert main(["--project", str(made.project.root), "gc", "--keep-younger", "0"]) == 0
    assert all((made.output / one["kept"]).is_dir() for one in result["compiles"])
    for name in ("ANALYSIS.md", "report.html"):
        text = (made.output / name).read_text()
        assert "Does it matter which of 3 compiles of one key is loaded?" in text
        assert f"this artifact is bad, tree {hashes[1]}" in text


def test_a_start_that_compiled_is_invalid(made: Campaign) -> None:
    made.answers(lambda _engine, _number: True)
    told = made.front.at_request
    assert told is not None

    def compiles(body: bytes) -> None:
        told(body)
        if len(made.engine.plans) == 2:
            made.engine.says("INFO Compiling a graph for compile range (1, 2048)")

    made.front.at_request = compiles
    status, document = made.nvllm(words(made, "--artifacts", "2", "--runs", "1"))
    assert (status, [one["code"] for one in document["refusals"]]) == (1, ["NV854"])
    assert sorted(one["outcome"] for one in document["result"]["arms"]) == ["invalid", "passed"]


def test_options_that_compare_something_else_are_refused(made: Campaign) -> None:
    status, document = made.nvllm(words(made, "--artifacts", "2", "--sentinels", "a", "--cold"))
    assert (status, [(one["code"], one["found"]) for one in document["refusals"]]) == (
        2,
        [("NV108", "--cold"), ("NV108", "--sentinels")],
    )
    status, document = made.nvllm(words(made))
    assert (status, document["refusals"][0]["expected"]) == (2, "--sentinels A,B or --artifacts K")


def test_a_dry_run_lists_every_start_of_every_artifact(made: Campaign) -> None:
    status, document = made.nvllm(words(made, "--artifacts", "2", "--runs", "2", "--dry-run"))
    assert (status, json.dumps(document["result"]["legs"]).count("artifact-2")) == (0, 2)
