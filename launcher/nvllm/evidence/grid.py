"""Every question in every run, as a grid of marks: what changes from run to run, and where, is seen at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.records import Comparison, QuestionRuns
from nvllm.trials.answers import Answered

MOST_QUESTIONS, MOST_MARKS = 1000, 200_000
"""Questions, and marks of all questions together, that are listed."""

RIGHT, WRONG, LATE, NONE = "+x-."
"""The marks of an answer: it is right, wrong, ran into its timeout, or is missing."""


def noted(compared: Comparison, arms: Sequence[ArmLegs]) -> Comparison:
    """Return COMPARED, the comparison of ARMS, with the marks of every question, if more than one was asked.

    Runs are those of each engine that was asked several, else those of each arm.
    """
    legs = [
        [leg for leg in arm.legs if leg[0].in_engine == engine]
        for arm in arms
        for engine in dict.fromkeys(verdict.in_engine for verdict, _ in arm.legs)
    ]
    if not compared.engines:
        legs = [[*arm.legs] for arm in arms]
    in_order = [sorted(of_column, key=lambda leg: leg[0].run) for of_column in legs]
    runs = [[{answer.id: answer for answer in answers} for _, answers in column] for column in in_order]
    expected = {answer.id: answer.expected for column in runs for answers in column for answer in answers.values()}
    if len(expected) < 2:
        return compared
    most = min(MOST_QUESTIONS, MOST_MARKS // max(1, sum(map(len, runs))))
    rows = tuple(
        QuestionRuns(
            question,
            expected[question],
            tuple("".join(_mark(answers.get(question)) for answers in column) for column in runs),
        )
        for question in sorted(expected)[:most]
    )
    left_out = f"run by run, the first {most} of {len(expected)} questions are listed"
    notes = (*compared.notes, *([left_out] if len(expected) > most else []))
    return replace(compared, questions=rows, notes=notes)


def _mark(answer: Answered | None) -> str:
    if answer is None or (answer.problem and not answer.timed_out):
        return NONE
    return RIGHT if answer.correct else LATE if answer.timed_out else WRONG
