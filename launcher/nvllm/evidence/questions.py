"""Questions in the form of GSM8K: one JSON object a line, whose answer ends with the number after ``####``."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from nvllm.core import canonical, reading
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse, refuse_any

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(r"####\s*\$?\s*(-?\d[\d,]*(?:\.\d+)?)")
_FRACTION = re.compile(r"(\d{1,9})/(\d{1,9})")
_PERCENT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)%")
_SHOWN = 20
"""Lines without a question that are refused: a file of another kind may have a million."""
_LONGEST = 40
"""Characters that a number may have; a model can write endless digits."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its TEXT and the NUMBER that is its answer. The ID is the number of its line, from 1."""

    id: int
    text: str
    number: str

    @property
    def prompt(self) -> str:
        return f"Question: {self.text}\nAnswer:"


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
                questions.append(Question(number, text, normal(marked[1])))
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


def part(text: str) -> float:
    """Return the part of a whole that TEXT names: ``45/50`` is 0.9, and so is ``90%``.

    Raises ValueError for anything else: for a bare number, which may mean either, and for a part outside 0 to 1.
    """
    if match := _FRACTION.fullmatch(text):
        whole = int(match[2])
        value = int(match[1]) / whole if whole else 2.0
    elif match := _PERCENT.fullmatch(text):
        value = float(match[1]) / 100
    else:
        raise ValueError(f"{text[:_LONGEST]}, which is neither a count of a whole nor a percentage")
    if value > 1:
        raise ValueError(f"{text[:_LONGEST]}, which is more than the whole")
    return value


def prompts_hash(questions: Sequence[Question]) -> str:
    """Return the hash of what is asked, and of what counts as correct."""
    rows: Json = [[one.id, one.prompt, one.number] for one in questions]
    return canonical.digest("nvllm.questions/1", rows)


def final_number(text: str) -> str:
    """Return the number that TEXT answers with: the first after ``####``, else the last one; empty if there is none."""
    marked = _MARKED.search(text)
    numbers = [marked[1]] if marked is not None else _NUMBER.findall(text)
    return normal(numbers[-1]) if numbers and len(numbers[-1]) <= _LONGEST else ""


def normal(number: str) -> str:
    """Return NUMBER without commas and without zeros that say nothing: ``1,200.50`` is ``1200.5``."""
    value = Decimal(number.replace(",", ""))
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in {"-0", ""} else text.lstrip("0") if text.strip("0") and not text.startswith("0.") else text
