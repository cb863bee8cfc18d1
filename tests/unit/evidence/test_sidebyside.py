"""A bench of two profiles: a planted difference is found, equal ones are called equal, and a drift is neither."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from nvllm.evidence import conclusion, page, sidebyside, summary
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import ArmState, Comparison, Margins, RunManifest
from support.evidence_samples import answer, benched, manifest, verdict
from support.rows import each_row


def leg_figures(slower: float, drawn: random.Random) -> dict[str, float]:
    """Return figures of an engine that is SLOWER than another by that factor, with 1 % of noise."""
    noise = [1 + drawn.gauss(0, 0.01) for _ in PRIMARY]
    return {
        name: 100 / slower * one if more else 100 * slower * one
        for (name, more), one in zip(PRIMARY.items(), noise, strict=True)
    }


def arms(slower: Callable[[int], tuple[float, float]], seed: int, runs: int = 6) -> list[ArmLegs]:
    """Return two profiles whose legs are SLOWER in a run by these factors."""
    drawn = random.Random(seed)
    figures = [[leg_figures(slower(run)[place], drawn) for run in range(1, runs + 1)] for place in (0, 1)]
    return [benched(name, of) for name, of in zip(("A", "B"), figures, strict=True)]


def finding(found: Comparison) -> str:
    (one,) = found.findings
    assert one.factor == "B / A"
    return one.finding


@each_row("seed", range(5))
def test_a_planted_latency_of_5_percent_is_found(seed: int) -> None:
    found = sidebyside.compare(arms(lambda _: (1.0, 1.05), seed))
    assert finding(found) == "loss"
    (slower,) = [one for one in found.effects if one.measure == "p50 e2el, ms"]
    assert slower.low is not None
    assert slower.high is not None
    assert 1 < slower.low < 1.05 < slower.high < 1.1


@each_row("seed", range(5))
def test_equal_legs_are_called_equal(seed: int) -> None:
    assert finding(sidebyside.compare(arms(lambda _: (1.0, 1.0), seed, runs=16))) == "neutral"


def test_a_host_that_drifts_is_no_difference() -> None:
    found = sidebyside.compare(arms(lambda run: (1.1**run, 1.1**run), 1, runs=16))
    assert finding(found) == "neutral"


def test_how_often_equal_legs_are_called_different() -> None:
    """At 95 %, corrected for four figures: of 200 pairs some 10 at most, and 20 with very small probability."""
    wrong = [finding(sidebyside.compare(arms(lambda _: (1.0, 1.0), seed))) for seed in range(200)]
    assert len([one for one in wrong if one not in ("neutral", "unknown")]) < 20


def test_a_noisy_host_is_not_called_equal() -> None:
    found = sidebyside.compare(arms(lambda run: (1.0 + run % 3, 1.0 + (run + 1) % 3), 1))
    assert finding(found) == "unknown"
    assert found.findings[0].text.startswith("not known: output tokens/s x")
    assert "it would take about " in found.findings[0].text


def test_what_is_better_in_one_figure_and_worse_in_another_is_mixed() -> None:
    first, second = arms(lambda _: (1.0, 1.0), 1)
    changed = [{**one.figures, "p50 ttft, ms": 80 + one.run, "p50 itl, ms": 130 + one.run} for one, _ in second.legs]
    assert finding(sidebyside.compare([first, benched("B", changed)])) == "mixed"


def test_one_run_or_one_profile_is_only_described() -> None:
    assert finding(sidebyside.compare(arms(lambda _: (1.0, 1.5), 1, runs=1))) == "unknown"
    alone = sidebyside.compare(arms(lambda _: (1.0, 1.0), 1)[:1])
    assert (alone.findings, alone.effects) == ((), ())
    assert alone.arms[0].figures["output tokens/s"] == pytest.approx(100, rel=0.02)


def test_an_invalid_leg_compares_nothing() -> None:
    first, _ = arms(lambda _: (1.0, 1.0), 1)
    broken = ArmLegs("B", (), ((verdict("B", 1, (answer(1, 0),), "invalid"), (answer(1, 0),)),))
    for pair in ([first, broken], [broken, first]):
        found = sidebyside.compare(pair)
        assert ([one.finding for one in found.findings], found.effects) == (["unknown"], ())


def swept(slower: float, right: Callable[[str, int], bool], questions: int = 40) -> tuple[RunManifest, list[ArmLegs]]:
    """Return a sweep of the profiles A and B over six runs: B is SLOWER, and A or B is RIGHT in a question."""
    drawn = random.Random(1)
    names, found = ("A", "B", "A-2"), []
    for name in names:
        legs = []
        for run in range(1, 7):
            answers = tuple(answer(run, one, correct=right(name[0], one)) for one in range(1, questions + 1))
            figures = leg_figures(slower if name == "B" else 1.0, drawn)
            legs.append((replace(verdict(name, run, answers), figures=figures), answers))
        found.append(ArmLegs(name, (), tuple(legs)))
    states = tuple(ArmState(name, name[0], (), ()) for name in names)
    return replace(manifest((), runs=6), kind="sweep", arms=states, ablated=()), found


@pytest.mark.drawn
def test_a_sweep_holds_every_profile_against_the_first_and_that_against_itself() -> None:
    wanted, legs = swept(1.05, lambda *_: True)
    wanted = replace(wanted, margins=Margins(speed=0.1, questions=0.15))
    found = conclusion.of(wanted, legs)
    assert {one.factor: one.finding for one in found.findings} == {"B / A": "loss", "A-2 / A": "neutral"}
    assert "A-2 is A once more: any difference between them is noise" in found.notes
    assert any("identical runs are one sample" in one for one in found.notes)
    facts = dict(summary.facts(wanted))
    assert facts["order"].startswith(
        "turned from run to run; the first and the last leg of run 1: A, A-2; 2: A-2, A; 3"
    )
    columns, rows = summary.arm_table(wanted, found)
    assert columns == ("arm", "outcome", "valid runs", "samples", "correct, %", "interval, %", "timeouts", *PRIMARY)
    assert [len(row) for row in rows] == [11] * 3
    assert [row[4] for row in rows] == ["100.0"] * 3
    drawn = page.html(wanted, legs, found)
    ET.fromstring(drawn)
    assert "Seconds of an answer" in drawn
    assert "B / A: p50 e2el, ms" in drawn


def test_a_profile_of_a_sweep_that_answers_worse_is_a_loss() -> None:
    found = conclusion.of(*swept(1.0, lambda name, question: name == "A" or question > 12))
    assert [one.finding for one in found.findings] == ["loss", "unknown"]
    assert found.findings[0].text.startswith("fewer correct answers: correct -30.0 points (")
    assert [(flip.factor, flip.id, flip.right, flip.replies) for flip in found.flipped][:1] == [
        ("B / A", 1, (1, 0), ("7", "8"))
    ]
    assert len(found.flipped) == 12


def test_a_sweep_with_few_questions_calls_nothing_equal() -> None:
    found = conclusion.of(*swept(1.0, lambda *_: True, questions=8))
    assert {one.finding for one in found.findings} == {"unknown"}


@each_row("worse", ["A", "B"])
def test_shares_that_may_differ_by_more_than_the_margin_are_not_called_equal(worse: str) -> None:
    """Two of 40 questions are no difference, but the interval of what they show goes beyond 10 points."""
    found = conclusion.of(*swept(1.0, lambda name, question: name != worse or question > 2))
    (one,) = [one for one in found.effects if (one.factor, one.measure) == ("B / A", "correct")]
    assert one.low is not None
    assert one.high is not None
    assert (one.low < -0.15, one.high > 0.15) == (worse == "B", worse == "A")
    assert found.findings[0].finding == "unknown"


def test_noise_that_looks_like_a_difference_is_said() -> None:
    wanted, legs = swept(1.05, lambda *_: True)
    found = conclusion.of(replace(wanted, arms=(wanted.arms[0], replace(wanted.arms[1], profile="A"))), legs[:2])
    assert found.notes[-1] == "B and A are the same and were found to differ: trust no other finding"


@pytest.mark.drawn
def test_the_kind_of_a_run_decides_what_follows() -> None:
    wanted = replace(manifest(()), kind="bench")
    found = conclusion.of(wanted, arms(lambda _: (1.0, 1.05), 1))
    assert finding(found) == "loss"
    text = summary.markdown(wanted, found)
    assert text.startswith("# Bench of demo, eager\n")
    assert "| p50 e2el, ms | " in text
    assert summary.arm_table(wanted, found).columns == ("arm", "outcome", "valid runs")
    drawn = page.html(wanted, arms(lambda _: (1.0, 1.05), 1), found)
    ET.fromstring(drawn)
    assert "B / A: p50 e2el, ms" in drawn
    assert "Seconds of an answer" not in drawn


@each_row(("runs", "noise", "least"), [(5, 0.01, 0.97), (5, 0.02, 0.65), (8, 0.02, 0.95)])
def test_how_many_runs_find_5_percent(runs: int, noise: float, least: float) -> None:
    """NOISE is the standard deviation of the ratio of one run; all figures of a leg vary together."""
    found = []
    for seed in range(60):
        drawn = random.Random(seed)
        legs: list[list[dict[str, float]]] = [[], []]
        for place, slower in [(0, 1.0), (1, 1.05)] * runs:
            factor = slower * (1 + drawn.gauss(0, noise / 2**0.5))
            legs[place].append({name: 100 / factor if more else 100 * factor for name, more in PRIMARY.items()})
        found.append(finding(sidebyside.compare([benched(name, of) for name, of in zip("AB", legs, strict=True)])))
    assert found.count("loss") / len(found) >= least
