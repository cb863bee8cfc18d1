"""What an engine is asked and what it answers, as runs of evidence and blessings record both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from nvllm.core import canonical, documents
from nvllm.core.fields import Count, Form, Positive, Rule, Seconds, Sha256, Word


@dataclass(frozen=True, slots=True)
class ProbeState:
    """What every leg is asked. SHA256 is that of the prompts and their answers, or of the program."""

    name: Word
    sha256: Sha256
    questions: Count
    """0 for a program, which asks what it wants."""
    seed: int
    length: Count
    """The most tokens of an answer."""
    timeout: Seconds
    """Seconds that one question may take; 0 if that follows the rate of the first answers, or the program."""
    concurrency: Positive
    floor: Annotated[float | None, Rule(minimum=0)]
    """Correct answers, in percent, below which a leg has failed."""
    prompt: str = ""
    """What stands around each question; empty if that is not nvllm's."""
    stop: tuple[str, ...] = ()
    """The texts that end an answer."""
    extraction: str = ""
    """How a number is taken from an answer: strict or flexible."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A line of perq.jsonl: the answer to the question ID in RUN, and what was EXPECTED and FOUND as its number."""

    run: Positive
    id: Count
    correct: bool
    expected: str
    found: str
    seconds: Seconds
    tokens: Count
    text: str
    problem: str = ""
    """Why there is no answer; empty if there is one."""
    timed_out: bool = False


def unanswered(run: int, problem: str, question: int = 0) -> Answered:
    """Return that QUESTION of RUN, or the whole run, has no answer, and the PROBLEM that is why."""
    return Answered(run, question, False, "", "", 0.0, 0, "", problem)  # noqa: FBT003 - a field


FORM_ANSWER = Form(
    "evidence-answer", "nvllm.evidence-answer/1", "One answer: a line of perq.jsonl or answers.jsonl", Answered
)


def lines(answers: Iterable[Answered]) -> bytes:
    """Return ANSWERS as a file has them, one a line."""
    documents_of = (documents.unstructure(FORM_ANSWER, answer) for answer in answers)
    return b"".join(canonical.encode(document) + b"\n" for document in documents_of)
