"""The evaluation of a blessing, as a spec says it: a file of questions or a program, and how much must be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from nvllm.core.fields import ProjectPath, Rule, Text
from nvllm.core.parts import FLOOR

Floor = Annotated[
    str, Rule(FLOOR, "a part such as 45/50 or 90%: a bare number may mean either", cure="write 45/50, or 90%")
]
Extraction = Literal["strict", "flexible"]
"""``strict`` is the first number after ``####``, ``flexible`` the last number wherever it stands."""

PROMPT = "Question: {question}\nAnswer:"
"""The prompt of lm-eval's task ``gsm8k`` without examples."""


@dataclass(frozen=True, slots=True)
class QuestionEvaluation:
    """Questions in the form of GSM8K, each asked once and greedily, and graded as lm-eval grades ``gsm8k``."""

    kind: Literal["questions"]
    """nvllm asks the questions of a file."""
    file: ProjectPath
    """A file of the project with one JSON object a line, ``question`` and ``answer``. All of them are asked."""
    floor: Floor
    """The part of them that must be answered correctly, such as ``45/50`` or ``90%``."""
    prompt: Annotated[
        str,
        Rule(r"^((?!\{question\})[^\u0000])*\{question\}((?!\{question\})[^\u0000])*$", "a text with {question} once"),
    ] = PROMPT
    """What stands around each question."""
    stop: tuple[Text, ...] = ()
    """Texts that end an answer. Without any, what the prompt begins with: there the model invents the next question."""
    extraction: Annotated[Extraction, Rule(choices=("strict", "flexible"))] = "flexible"
    """How a number is taken from an answer: ``strict`` is the one after ``####``, ``flexible`` the last one."""
    length: Annotated[int, Rule(minimum=1, maximum=10**7)] = 512
    """The most tokens of an answer."""


@dataclass(frozen=True, slots=True)
class ProgramEvaluation:
    """A program that asks the engine, as one of `nvllm eval --probe` does."""

    kind: Literal["program"]
    """A program of the project asks."""
    file: ProjectPath
    """The program. Each line that it writes to ``$NVLLM_PERQ`` is an answer; without any, its exit status is one."""
    floor: Floor = "100%"
    """The part of its answers that must be correct."""


Evaluation = QuestionEvaluation | ProgramEvaluation
