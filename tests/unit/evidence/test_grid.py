"""Every question in every run: a mark for each, by arm or by engine, and never more than a page can have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.evidence import conclusion, grid, page, summary
from nvllm.evidence.arms import Arm
from nvllm.evidence.comparison import ArmLegs
from support.evidence_samples import benched, legs, manifest


def arms() -> list[ArmLegs]:
    """Return two arms of three runs: a loses question 2 in its second run, and has no third one."""

    def says(arm: Arm, run: int, question: int) -> tuple[bool, int, float]:
        return not (arm == ("a",) and (run, question) == (2, 2)), 10, 1.0

    none, other = (legs(arm, says, runs=3, questions=3) for arm in ((), ("a",)))
    late = replace(none.legs[0][1][0], correct=False, problem="too late", timed_out=True)
    verdict, answers = none.legs[0]
    none = replace(none, legs=((verdict, (late, *answers[1:])), *none.legs[1:]))
    return [none, replace(other, legs=other.legs[:2])]


def test_an_ablation_has_a_mark_for_each_run_of_each_arm() -> None:
    begun, compared_arms = manifest((), ("a",)), arms()
    compared = conclusion.of(begun, compared_arms)
    first = compared.questions[0].id
    assert summary.question_table(compared).columns == ("question", "expected", "none", "a")
    marks = {one.id - first: one.marks for one in compared.questions}
    assert marks[0] == ("-++", "++")
    assert sorted(one[1] for one in marks.values()) == ["++", "++", "+x"]
    text = page.html(begun, compared_arms, compared)
    assert "<h2>Questions, run by run</h2>" in text
    assert "-++" in text


def test_a_load_and_a_probe_of_one_answer_have_no_grid() -> None:
    assert conclusion.of(replace(manifest(()), kind="bench"), [benched("A", [{}] * 2)]).questions == ()
    one = legs((), lambda *_: (True, 1, 1.0), runs=2, questions=1)
    assert conclusion.of(replace(manifest(()), kind="eval"), [one]).questions == ()


def test_a_grid_has_so_many_marks_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_MARKS", 10)  # five runs of each question
    compared = conclusion.of(manifest((), ("a",)), arms())
    assert len(compared.questions) == 2
    assert "run by run, the first 2 of 3 questions are listed" in compared.notes
