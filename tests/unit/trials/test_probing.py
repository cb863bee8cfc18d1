"""Probes: every question has an answer, whatever the engine or the program does."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from nvllm.core import proc
from nvllm.core.plan import LaunchPlan
from nvllm.serve.rundir import RunDirectory
from nvllm.serve.startup import EngineStart
from nvllm.trials import probe as programs
from nvllm.trials import probing
from nvllm.trials.answers import Answered
from nvllm.trials.probing import ProgramProbe, QuestionProbe
from nvllm.trials.questions import Question
from support.plansamples import PLAN, FrontEnd

ASKED = tuple(Question(number, f"{number} + 1?", str(number + 1)) for number in range(1, 4))
PROBE = QuestionProbe("gsm8k", ASKED, 42, 16, 30.0, 2, None)


@dataclass(frozen=True)
class Started:
    """An engine that runs, as far as a probe of questions looks at it."""

    plan: LaunchPlan
    run: RunDirectory


def started(plan: LaunchPlan) -> EngineStart:
    return cast("EngineStart", Started(plan, RunDirectory(Path("/nonexistent"))))


def ask(front: FrontEnd, probe: QuestionProbe = PROBE) -> tuple[Answered, ...]:
    return probe.ask(started(replace(PLAN, port=front.port)), 3, lambda: None).answers


def says(text: str) -> bytes:
    return json.dumps({"choices": [{"text": text}], "usage": {"completion_tokens": 5}}).encode()


def test_questions_are_asked_greedily_and_answered_in_order(front: FrontEnd) -> None:
    front.body = says(" It is #### 3")
    found = ask(front)
    assert [(one.run, one.id, one.correct, one.found, one.tokens) for one in found] == [
        (3, 1, False, "3", 5),
        (3, 2, True, "3", 5),
        (3, 3, False, "3", 5),
    ]
    asked = json.loads(front.asked[0])
    assert asked["stop"] == ["Question:", "</s>", "<|im_end|>"]
    assert asked["prompt"] == "Question: 1 + 1?\nAnswer:"
    assert (asked["temperature"], asked["max_tokens"], asked["seed"], asked["model"]) == (0, 16, 42, "tiny")


def test_half_of_the_questions_come_before_the_other_half(front: FrontEnd) -> None:
    front.body = says("1")
    seen: list[int] = []
    PROBE.ask(started(replace(PLAN, port=front.port)), 1, lambda: seen.append(len(front.asked)))
    assert seen == [1]


def test_a_slow_answer_is_a_wrong_one(front: FrontEnd) -> None:
    front.body, front.pause = says("2"), 5.0
    found = ask(front, replace(PROBE, timeout=0.05, questions=ASKED[:1]))
    assert [(one.timed_out, one.correct) for one in found] == [(True, False)]


def tokens(value: object) -> bytes:
    return json.dumps({"choices": [{"text": "2"}], "usage": {"completion_tokens": value}}).encode()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"too long"),
        (200, b"{}"),
        (200, b"not JSON"),
        (200, tokens(1e300)),
        (200, tokens("9" * 5000)),
        (200, tokens(-1)),
        (200, tokens(True)),
    ],
)
def test_what_is_no_answer_is_a_problem(front: FrontEnd, status: int, body: bytes) -> None:
    front.status, front.body = status, body
    assert all(one.problem and not one.timed_out and not one.correct for one in ask(front))


def test_the_output_says_nothing_of_time(front: FrontEnd) -> None:
    front.body = says("1")
    first = ask(front)
    assert probing.output_hash(first) == probing.output_hash([replace(one, seconds=9.0, run=1) for one in first])
    assert probing.output_hash(first) != probing.output_hash([replace(one, text="2") for one in first])


def program(tmp_path: Path, text: str) -> tuple[Answered, ...]:
    path = tmp_path / "probe.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    test = programs.program(path, (), "", build_only=False)
    return ProgramProbe(test, proc.Programs()).ask(started(PLAN), 2, lambda: None).answers


@pytest.mark.parametrize(("status", "correct", "problem"), [(0, True, ""), (1, False, ""), (125, False, "exit 125")])
def test_a_program_without_lines_is_one_answer(tmp_path: Path, status: int, correct: bool, problem: str) -> None:
    (found,) = program(tmp_path, f"exit {status}")
    assert (found.run, found.correct, found.problem) == (2, correct, problem)


def test_a_program_is_told_what_it_asks_and_may_write_answers(tmp_path: Path) -> None:
    line = '{"id": 4, "correct": true, "tokens": 3, "seconds": 0.5, "text": "\'$NVLLM_MODEL\' \'$NVLLM_ADDRESS\'"}'
    found = program(tmp_path, f"echo '{line}' >> $NVLLM_PERQ; echo '[]' >> $NVLLM_PERQ")
    assert (found[0].id, found[0].tokens, found[0].seconds) == (4, 3, 0.5)
    assert found[0].text == f"tiny http://127.0.0.1:{PLAN.port}"
    assert found[1].problem == "line 2 of $NVLLM_PERQ is no JSON object: []"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"correct": true}', "field id must be a whole number of 0 or more, and is missing"),
        ('{"id": 1}', "field correct must be true or false, and is missing"),
        ('{"id": "1", "correct": true}', "field id must be a whole number of 0 or more, and is '1'"),
        ('{"id": 1, "correct": 1}', "field correct must be true or false, and is 1"),
        ('{"id": 1, "correct": true, "seconds": -1}', "field seconds must be a number of 0 or more, and is -1"),
        ('{"id": 1, "correct": true, "tokens": 1.5}', "field tokens must be a whole number of 0 or more, and is 1.5"),
        ('{"id": 1, "correct": true, "text": []}', "field text must be a text or a number, and is []"),
        ('{"id": 1, "correct": true, "timed_out": "no"}', "field timed_out must be true or false, and is 'no'"),
    ],
)
def test_a_line_that_is_not_accepted_names_the_field(line: str, problem: str) -> None:
    assert probing.reported(1, 3, line.encode()).problem == f"line 3 of $NVLLM_PERQ: {problem}"


def test_a_timeout_follows_the_length_and_the_rate() -> None:
    """512 tokens at 2.35 tokens a second take 218 s."""
    assert probing.patience(512, []) == 1024
    assert probing.patience(512, [2.35, 2.5]) == pytest.approx(653.6, abs=0.1)
    assert probing.patience(16, []) == probing.patience(512, [100.0]) == 120


def test_without_a_timeout_slow_answers_are_waited_for(front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "LEAST", 0.01)
    front.body, front.pause = says(" It is #### 2"), 0.05
    answers = ask(front, replace(PROBE, timeout=None, length=1, questions=ASKED[:1]))
    assert [(one.timed_out, one.correct) for one in answers] == [(False, True)]
    assert replace(PROBE, timeout=None).state.timeout == 0


def test_lines_of_a_program_that_could_not_test_do_not_count(tmp_path: Path) -> None:
    (found,) = program(tmp_path, 'echo \'{"id": 1, "correct": true}\' >> $NVLLM_PERQ; exit 125')
    assert found.problem == "exit 125"
