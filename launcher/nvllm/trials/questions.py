"""Questions in the form of GSM8K: one JSON object a line, whose answer ends with the number after ``####``."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import canonical, reading
from nvllm.core.canonical import Json
from nvllm.core.evaluation import PROMPT, Extraction
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.trials import grading

_MARKED = re.compile(r"####\s*\$?\s*(-?\d[\d,]*(?:\.\d+)?)")
_SHOWN = 20
"""Lines without a question that are refused: a file of another kind may have a million."""
_SHOWN_TEXT = 200


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its TEXT and the NUMBER that is its answer. The ID is the number of its line, from 1."""

    id: int
    text: str
    number: str


@dataclass(frozen=True, slots=True)
class Asking:
    """How questions are asked and graded: the PROMPT around each, the texts that STOP an answer, and its EXTRACTION."""

    prompt: str
    stop: tuple[str, ...]
    extraction: Extraction

    def prompt_of(self, question: Question) -> str:
        return self.prompt.replace("{question}", question.text)


def asking(prompt: str, stop: Sequence[str], extraction: Extraction) -> Asking:
    """Return how to ask by PROMPT; without STOP, an answer ends where the model would invent the next question.

    Raises Refused NV857 for a prompt without ``{question}``, and for an empty stop.
    """
    refusals = []
    if prompt.count("{question}") != 1:
        cure = "--prompt 'Question: {question}\\nAnswer:'"
        refusals.append(Refusal("NV857", "--prompt", "a text with {question} once", prompt[:_SHOWN_TEXT], cure))
    if "" in stop:
        refusals.append(Refusal("NV857", "--stop", "a text", "an empty one", "--stop 'Question:'"))
    refuse_any(refusals)
    derived = (grading.next_question(prompt), *grading.STOPS)
    return Asking(prompt, tuple(stop) or tuple(filter(None, derived)), extraction)


DEFAULT = Asking(PROMPT, (grading.next_question(PROMPT), *grading.STOPS), "flexible")
"""As lm-eval's task asks, without examples."""


def load(path: Path) -> tuple[Question, ...]:
    """Return the questions in PATH.

    Raises Refused NV109 if it cannot be read, and NV851 for each line without one, up to `_SHOWN` of them.
    """
    questions: list[Question] = []
    wrong: dict[int, str] = {}
    for number, line in enumerate(reading.required(path, reading.LOG, str(path)).split(b"\n"), 1):
        if not line.strip():
            continue
        problem = ""
        try:
            document = canonical.decode(line)
        except ValueError as error:
            document, problem = None, str(error)
        match document:
            case {"question": str(text), "answer": str(answer), **_rest} if marked := _MARKED.search(answer):
                questions.append(Question(number, text, grading.normal(marked[1])))
            case _:
                wrong[number] = problem or line[:80].decode("utf-8", "replace")
                if len(wrong) > _SHOWN:
                    break
    listed = [*wrong.items()][:_SHOWN]
    if len(wrong) > _SHOWN:
        listed[-1] = (listed[-1][0], f"{listed[-1][1]}; further lines are not shown")
    expected = 'a JSON object with "question", and an "answer" that ends with #### and a number'
    # One command for all: whoever deletes the first of them shifts the others.
    cure = shlex.join(["sed", "-i", ";".join(f"{number}d" for number, _ in listed), str(path)])
    refuse_any(Refusal("NV851", f"{path}:{number}", expected, text, cure) for number, text in listed)
    if not questions:
        raise refuse(
            "NV851", str(path), "at least one question", "none", "name a file in the form of GSM8K: --data FILE"
        )
    return tuple(questions)


def drawn(questions: Sequence[Question], count: int | None, seed: int) -> tuple[Question, ...]:
    """Return COUNT of QUESTIONS that SEED draws, in their order; all of them if COUNT is None or larger."""
    if count is None or count >= len(questions):
        return tuple(questions)
    chosen = random.Random(seed).sample(range(len(questions)), count)  # noqa: S311 - which are asked is no secret
    return tuple(questions[place] for place in sorted(chosen))


def prompts_hash(questions: Sequence[Question], asking: Asking) -> str:
    """Return the hash of what is asked, how, and of what counts as correct."""
    rows: Json = [[question.id, asking.prompt_of(question), question.number] for question in questions]
    return canonical.digest("nvllm.questions/2", [rows, [*asking.stop], asking.extraction])
