"""Runs in one engine: a collapse is found and named, chance is not, and what the method can see."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from nvllm.evidence import analysis, conclusion
from nvllm.evidence.comparison import ArmLegs, Leg
from nvllm.evidence.records import Comparison, FactorFinding, RunManifest
from support import evidence_samples
from support.evidence_samples import answer, verdict

QUESTIONS = 50
COLLAPSE = (47, 47, 47, 11, 35)


def leg(engine: int, turn: int, per_engine: int, right: Sequence[bool]) -> Leg:
    """Return the leg that is run TURN of ENGINE, with an answer for each of RIGHT."""
    run = (engine - 1) * per_engine + turn
    answers = tuple(answer(run, number, correct=each) for number, each in enumerate(right, 1))
    told = replace(verdict("P", run, answers), engine=engine, turn=turn, kv_usage=0.0)
    return told, answers


def evaluated(engines: Sequence[Sequence[Sequence[bool]]]) -> Comparison:
    """Return what follows from ENGINES of one profile: for each of them its runs, with an answer for each question."""
    per_engine = max(len(runs) for runs in engines)
    legs = [
        leg(engine, turn, per_engine, right)
        for engine, runs in enumerate(engines, 1)
        for turn, right in enumerate(runs, 1)
    ]
    return conclusion.of(manifest(len(engines), per_engine), [ArmLegs("P", (), tuple(legs))])


def manifest(engines: int, per_engine: int) -> RunManifest:
    made = evidence_samples.manifest((), runs=engines * per_engine, questions=QUESTIONS)
    return replace(made, kind="eval", per_engine=per_engine, arms=(replace(made.arms[0], name="P"),))


def first(count: int) -> list[bool]:
    """Return answers of which the first COUNT are right."""
    return [number < count for number in range(QUESTIONS)]


def named(compared: Comparison) -> list[FactorFinding]:
    return [one for one in compared.findings if " / run 1" in one.factor]


def lost(compared: Comparison) -> list[str]:
    """Return the runs that were found to be worse than the first one."""
    return [one.factor for one in compared.effects if one.adjusted is not None and one.adjusted < 0.05]


def test_a_collapse_in_the_fourth_run_is_found_and_named() -> None:
    compared = evaluated([[first(count) for count in COLLAPSE]])
    (finding,) = named(compared)
    assert (finding.factor, finding.finding) == ("engine 1, runs 2 to 5 / run 1", "loss")
    assert finding.text.startswith(
        "47, 47, 47, 11, 35 of 50 right, run after run; "
        "engine 1, run 4 / run 1: fewer correct answers: correct -72.0 points"
    )
    assert lost(compared) == ["engine 1, run 4 / run 1", "engine 1, run 5 / run 1"]
    loss = "engine 1, runs 2 to 5 / run 1 is a loss: 47, 47, 47, 11, 35 of 50 right, run after run"
    assert analysis.answer(compared)[0] == ("loss", f"{loss}; a part is not known yet: {finding.takes}")


def test_one_engine_of_three_collapses_alone() -> None:
    steady = [first(47)] * 5
    compared = evaluated([steady, [first(count) for count in COLLAPSE], steady])
    assert {one.factor: one.finding for one in named(compared)} == {
        "engine 1, runs 2 to 5 / run 1": "unknown",
        "engine 2, runs 2 to 5 / run 1": "loss",
        "engine 3, runs 2 to 5 / run 1": "unknown",
        "all 3 engines, runs 2 to 5 / run 1": "unknown",
    }


def test_each_question_and_each_run_is_listed() -> None:
    told = evaluated([[first(count) for count in COLLAPSE]])
    text = analysis.markdown(manifest(1, 5), told)
    assert "| 1 | 7 | +++++ |" in text
    assert "| 12 | 7 | +++x+ |" in text
    assert "| 36 | 7 | +++xx |" in text
    assert "| 50 | 7 | xxxxx |" in text
    assert "| P | 1 | 4 | passed | 11 of 50 | 1.00 | 0.00 | 1024 |".replace("1.00", "10.00") in text


def test_runs_in_engines_of_their_own_have_no_drift() -> None:
    legs = tuple((replace(told, engine=0, turn=1), answers) for told, answers in (leg(1, 1, 1, first(47)),))
    compared = conclusion.of(manifest(1, 1), [ArmLegs("P", (), legs)])
    assert (named(compared), compared.engines) == ([], ())


def test_an_engine_is_one_observation_of_speed_however_often_it_was_asked() -> None:
    """Of two runs in one engine the second one says nothing new of how fast engines are."""
    compared = evaluated([[first(47)] * 5])
    assert "speed rests on one run of each arm: no interval" in compared.notes


def noisy(drawn: random.Random, rates: Sequence[float], questions: int = QUESTIONS) -> list[list[bool]]:
    return [[drawn.random() < rate for _ in range(questions)] for rate in rates]


@pytest.mark.thorough
def test_chance_is_called_drift_in_one_campaign_of_twenty_at_most_and_a_loss_of_a_third_is_seen() -> None:
    """Answers are drawn anew in each run: nothing is as noisy. Five runs, one engine."""
    drawn = random.Random(31)
    for rate in (0.5, 0.94):
        false = sum(bool(lost(evaluated([noisy(drawn, [rate] * 5)]))) for _ in range(150))
        assert false <= 11, (rate, false)  # 150 of 5 % are 7.5; 12 or more would come once in twelve
    fallen = [0.94, 0.94, 0.94, 0.62, 0.94]
    seen = sum("engine 1, run 4 / run 1" in lost(evaluated([noisy(drawn, fallen)])) for _ in range(100))
    assert seen >= 80, seen
