"""The comparison: effects that were planted are found, and noise is called noise."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from nvllm.evidence import comparison
from nvllm.evidence.arms import Arm
from nvllm.evidence.records import MARGINS, Comparison, Effect, FactorFinding, Margins
from support.evidence_samples import Says, legs
from support.rows import each_row

FOUR: Sequence[Arm] = ((), ("a",), ("b",), ("a", "b"))


WIDE = Margins(0.03, 0.2, 0.3)
"""Margins that 40 questions can hold: with the usual ones it takes 110 that all are answered alike."""


def compared(
    says: Says, arms: Sequence[Arm] = FOUR, runs: int = 3, questions: int = 40, margins: Margins = WIDE
) -> Comparison:
    return comparison.compare([legs(arm, says, runs, questions) for arm in arms], margins)


def effect(found: Comparison, factor: str, measure: str) -> Effect:
    (one,) = [one for one in found.effects if (one.factor, one.measure) == (factor, measure)]
    return one


def finding(found: Comparison, factor: str) -> FactorFinding:
    (one,) = [one for one in found.findings if one.factor == factor]
    return one


def noise(run: int, question: int) -> float:
    """Return a factor near 1 that is another one in each run."""
    return 1 + random.Random(run * 1000 + question).uniform(-0.02, 0.02)


def test_a_patch_that_repairs_answers_is_a_win_and_the_other_is_neutral() -> None:
    found = compared(
        lambda arm, run, question: ("a" in arm or question % 2 == 0, 10, noise(run, question + 7 * len(arm))), runs=5
    )
    assert finding(found, "a").finding == "win"
    assert finding(found, "b").finding == "neutral"
    one = effect(found, "a", "correct")
    assert one.estimate == pytest.approx(0.5)
    assert one.low is not None
    assert one.low > 0.2
    assert one.unit == "question"


def test_nobody_knows_what_the_fork_s_ablation_says() -> None:
    """Four arms, five identical runs each: 48, 48, 48 and 47 of 50. That is one question, not five."""

    def says(arm: Arm, run: int, question: int) -> tuple[bool, int, float]:
        return question > (3 if arm == ("b",) else 2), 10, noise(run, question)

    found = compared(says, runs=5, questions=50, margins=MARGINS)
    assert [(one.runs, one.samples) for one in found.arms] == [(5, 1)] * 4
    assert {one.finding for one in found.findings} == {"unknown"}
    assert "it would take about " in finding(found, "b").text
    assert " questions, if more are like these" in finding(found, "b").text
    assert [(flip.id, flip.first, flip.other, flip.right) for flip in found.flipped if flip.factor == "b"] == [
        (3, "none", "b", (1, 0))
    ]
    assert effect(found, "a", "correct").observations == 50
    assert any("5 runs, 1 different outputs" in note for note in found.notes)


def test_an_interaction_is_told_from_two_effects() -> None:
    found = compared(lambda arm, run, question: (set(arm) == {"a", "b"} or question % 4 == 0, 10, 1.0))
    assert effect(found, "a x b", "correct").estimate == pytest.approx(0.75)
    low = effect(found, "a x b", "correct").low
    assert low is not None
    assert low > 0


def test_shorter_generations_are_no_win() -> None:
    def says(arm: Arm, run: int, question: int) -> tuple[bool, int, float]:
        tokens = 5 + question % 3 if "a" in arm else 20 + question % 3
        return True, tokens, tokens * 0.1 * noise(run, question + len(arm))

    found = compared(says, runs=5)
    assert finding(found, "a").finding == "shorter generations"
    assert effect(found, "a", "tokens per answer").estimate == pytest.approx(-15)


def test_more_tokens_per_second_are_a_win() -> None:
    found = compared(
        lambda arm, run, question: (True, 10, noise(run, question + 7 * len(arm)) * (0.8 if "a" in arm else 1.0)),
        runs=5,
    )
    assert finding(found, "a").finding == "win"
    assert effect(found, "a", "tokens per second").estimate == pytest.approx(1.25, abs=0.02)
    assert effect(found, "a", "tokens per second").observations == 5


def test_fewer_tokens_per_second_are_a_loss() -> None:
    found = compared(
        lambda arm, run, question: (True, 10, noise(run, question + 7 * len(arm)) * (1.25 if "a" in arm else 1.0)),
        runs=5,
    )
    assert finding(found, "a").finding == "loss"
    assert finding(found, "a").text.startswith("slower: tokens per second x0.800 (")


@each_row(("better", "called"), [(5, "unknown"), (7, "win")])
def test_a_few_questions_are_no_win(better: int, called: str) -> None:
    """All five that differ, differ the same way: once in 16 times by chance, and corrected once in 8."""
    found = compared(lambda arm, run, question: ("a" in arm or question > better, 10, 1.0), FOUR[:2], runs=1)
    assert finding(found, "a").finding == called
    adjusted = effect(found, "a", "correct").adjusted
    assert adjusted == pytest.approx(2 * 2 / 2**better)
    assert "one run of each arm: whether another run would answer the same is unknown" in found.notes


def test_a_drift_of_the_host_is_no_effect() -> None:
    """Each run is twice as slow as the one before it; arms are compared within a run."""
    found = compared(lambda arm, run, question: (True, 10, 2.0**run * noise(run, question + 7 * len(arm))), runs=5)
    assert {one.finding for one in found.findings} == {"neutral"}


def test_one_run_says_nothing_of_speed() -> None:
    found = compared(lambda arm, run, question: (True, 10, 1.0), runs=1)
    assert effect(found, "a", "tokens per second").low is None
    assert finding(found, "a").text.endswith(
        "at least 3 runs, which are not all the same, must show how much runs differ"
    )


def test_an_invalid_arm_is_in_no_effect() -> None:
    def says(arm: Arm, run: int, question: int) -> tuple[bool, int, float]:
        return True, 10, 1.0

    arms = [legs(arm, says, outcome="invalid" if arm == ("a",) else "passed") for arm in FOUR]
    found = comparison.compare(arms)
    assert [one.outcome for one in found.arms] == ["passed", "invalid", "passed", "passed"]
    assert found.notes[0] == "a is invalid, and left out of every effect: sentinel a (no line about its switch)"
    assert [one.factor for one in found.effects] == ["a"] * 3 + ["b"] * 3  # from the pairs that are left
    alone = comparison.compare([arms[0], arms[1]])
    assert alone.effects == ()
    assert [one.finding for one in alone.findings] == ["unknown"]


def test_one_invalid_run_makes_its_arm_invalid() -> None:
    sound = legs(("a",), lambda arm, run, question: (True, 10, 1.0))
    broken = legs(("a",), lambda arm, run, question: (True, 10, 1.0), outcome="invalid")
    mixed = comparison.ArmLegs("a", ("a",), (*sound.legs[:2], broken.legs[2]))
    assert mixed.outcome == "invalid"
    empty = comparison.ArmLegs("a", ("a",), ())
    assert empty.outcome == "invalid"
    assert comparison.compare([empty]).notes == (
        "a is invalid, and left out of every effect: no run of it is complete",
    )


def test_p_values_are_corrected_for_all_effects() -> None:
    found = compared(lambda arm, run, question: ("a" in arm or question > 5, 10, noise(run, question)))
    one = effect(found, "a", "correct")
    assert one.p is not None
    assert one.adjusted is not None
    assert one.adjusted >= one.p
    assert any("corrected for 7 effects" in note for note in found.notes)
