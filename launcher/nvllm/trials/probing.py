"""Probes: what a leg asks its engine. Each returns an answer for every question, whatever the engine does."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from nvllm.core import canonical, proc, reading
from nvllm.core.canonical import Json
from nvllm.core.plan import LaunchPlan
from nvllm.serve import health
from nvllm.serve.health import NotInTime, NotReady
from nvllm.serve.startup import EngineStart
from nvllm.trials import bench, grading, questions
from nvllm.trials.answers import Answered, ProbeState, unanswered
from nvllm.trials.questions import DEFAULT, Asking, Question
from nvllm.trials.trial import BisectProbe

KEPT = 4000
"""Characters of an answer that are kept."""
_REPLY = 40
"""Characters of its number that are kept; a model can write endless digits."""
LEAST, _TIMES, _SLOWEST = 120.0, 3.0, 0.5
"""Without --timeout: the least seconds, how many times the expected ones, and tokens per second if nothing is known."""
_MEASURED = 3
"""Answers whose rates are measured."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a leg was answered, and the FIGURES that were measured besides, by name."""

    answers: tuple[Answered, ...]
    figures: Mapping[str, float] = field(default_factory=dict)


class LegProbe(Protocol):
    """What a leg asks."""

    @property
    def state(self) -> ProbeState:
        """What stands about the probe in the manifest of a run."""

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        """Ask the engine of START, in RUN, and call HALFWAY between two questions."""


@dataclass(frozen=True, slots=True)
class QuestionProbe:
    """QUESTIONS, each asked once, greedily, CONCURRENCY at a time, as ASKING says. An answer has LENGTH tokens.

    It may take TIMEOUT seconds; without one, several times as long as LENGTH tokens take at the rate of the first
    answers.
    """

    name: str
    questions: Sequence[Question]
    seed: int
    length: int
    timeout: float | None
    concurrency: int
    floor: float | None
    asking: Asking = DEFAULT

    @property
    def state(self) -> ProbeState:
        return ProbeState(
            name=self.name,
            sha256=questions.prompts_hash(self.questions, self.asking),
            questions=len(self.questions),
            seed=self.seed,
            length=self.length,
            timeout=self.timeout or 0.0,
            concurrency=self.concurrency,
            floor=self.floor,
            prompt=self.asking.prompt,
            stop=self.asking.stop,
            extraction=self.asking.extraction,
        )

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        plan, middle = start.plan, len(self.questions) // 2
        rates: list[float] = []

        def answer(question: Question) -> Answered:
            limit = self.timeout or patience(self.length, rates)
            answered = self.answer(plan, run, question, limit)
            if answered.tokens and len(rates) < _MEASURED:
                rates.append(answered.tokens / max(answered.seconds, 1e-3))  # they are rounded, and may be 0
            return answered

        with ThreadPoolExecutor(max_workers=self.concurrency) as pool:
            first = [*pool.map(answer, self.questions[:middle])]
            halfway()
            return Asked((*first, *pool.map(answer, self.questions[middle:])))

    def answer(self, plan: LaunchPlan, run: int, question: Question, timeout: float) -> Answered:
        fields: dict[str, Json] = {
            "prompt": self.asking.prompt_of(question),
            "max_tokens": self.length,
            "seed": self.seed,
            "stop": [*self.asking.stop],
        }
        began = time.monotonic()
        text, tokens, problem, timed_out = "", 0, "", False
        try:
            status, body = health.ask(plan, {**fields, **health.GREEDY}, timeout)
            if status == 200:
                text, tokens = _completion(body)
            else:
                problem = f"HTTP {status}: {body[:200]}"
        except NotReady as error:
            problem, timed_out = error.problem, isinstance(error, NotInTime)
        number = grading.extracted(text, self.asking.extraction)
        seconds = round(time.monotonic() - began, 4)
        correct = grading.same(number, question.number)
        reply = number[:_REPLY]
        return Answered(
            run, question.id, correct, question.number, reply, seconds, tokens, text[:KEPT], problem, timed_out
        )


def patience(length: int, rates: Sequence[float]) -> float:
    """Return the seconds that an answer of LENGTH tokens may take.

    RATES are the tokens per second of the first answers. Before there is one, half a token per second is expected.
    """
    if not rates:
        return max(LEAST, length / _SLOWEST)
    return max(LEAST, _TIMES * length / min(rates))


def _completion(body: str) -> tuple[str, int]:
    """Return text and number of tokens of the completion BODY. Raises NotReady if it is none."""
    try:
        document: Any = canonical.decode(body.encode(errors="replace"))
        text, tokens = document["choices"][0]["text"], document["usage"]["completion_tokens"]
    except (ValueError, LookupError, TypeError) as error:
        raise NotReady(f"no completion: {body[:200]}", final=True) from error
    if not isinstance(text, str) or type(tokens) is not int or tokens < 0:
        raise NotReady(f"no completion: {body[:200]}", final=True)
    return text, tokens


@dataclass(frozen=True, slots=True)
class ProgramProbe:
    """The program TEST, which may append lines of perq.jsonl to the file that NVLLM_PERQ names.

    Such a line needs `id` and `correct`; `expected`, `found`, `seconds`, `tokens` and `text` are optional. Without
    lines, the program's exit status is the one answer.
    """

    test: BisectProbe
    programs: proc.Programs
    floor: float | None = 100.0
    """In percent. A program without lines is one answer, so that by default its exit status decides."""

    @property
    def state(self) -> ProbeState:
        return ProbeState(Path(self.test.command[0]).name, self.test.sha256, 0, 0, 0, 0.0, 1, self.floor)

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        plan, began = start.plan, time.monotonic()
        with tempfile.TemporaryDirectory(prefix="nvllm-perq-") as directory:
            written = Path(directory) / "perq.jsonl"
            address = f"http://127.0.0.1:{plan.port}"
            variables = {"NVLLM_ADDRESS": address, "NVLLM_MODEL": plan.request_name, "NVLLM_PERQ": str(written)}
            variables["NVLLM_RUN"] = str(run)
            trial = bench.run_probe(self.test, variables, start.run.log, began, self.programs).trial
            lines = reading.content(written, reading.LOG).splitlines() if written.exists() else []
        problem = trial.kind if trial.outcome == "untestable" else ""
        answers = [reported(run, number, line) for number, line in enumerate(lines, 1)]
        if answers and not problem:
            return Asked(tuple(answers))
        seconds = round(time.monotonic() - began, 4)
        output = trial.said[:KEPT]
        return Asked((Answered(run, 0, trial.outcome == "good", "", "", seconds, 0, output, problem),))


def reported(run: int, number: int, line: bytes) -> Answered:
    """Return the answer in LINE, the line NUMBER of what a program wrote in RUN; with a problem if there is none."""
    document: Json = None
    with contextlib.suppress(ValueError):
        document = canonical.decode(line)
    if not isinstance(document, dict):
        text = line[:80].decode("utf-8", "replace")
        return unanswered(run, f"line {number} of $NVLLM_PERQ is no JSON object: {text}", number)
    for name, (default, form, accepts) in _FIELDS.items():
        value = document.get(name, default)
        if not accepts(value):
            seen = repr(value)[:80] if name in document else "missing"
            problem = f"line {number} of $NVLLM_PERQ: field {name} must be {form}, and is {seen}"
            return unanswered(run, problem, number)
    fields: Any = {name: document.get(name, default) for name, (default, _, _) in _FIELDS.items()}
    return Answered(
        run=run,
        id=fields["id"],
        correct=fields["correct"],
        expected=str(fields["expected"]),
        found=str(fields["found"])[:KEPT],
        seconds=float(fields["seconds"]),
        tokens=fields["tokens"],
        text=str(fields["text"])[:KEPT],
        timed_out=fields["timed_out"],
    )


def _is_count(value: Json) -> bool:
    return type(value) is int and value >= 0


def _is_truth(value: Json) -> bool:
    return isinstance(value, bool)


def _is_seconds(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_text(value: Json) -> bool:
    return isinstance(value, str | int | float)


_FIELDS: Mapping[str, tuple[Json, str, Callable[[Json], bool]]] = MappingProxyType(
    {
        "id": (None, "a whole number of 0 or more", _is_count),
        "correct": (None, "true or false", _is_truth),
        "expected": ("", "a text or a number", _is_text),
        "found": ("", "a text or a number", _is_text),
        "seconds": (0.0, "a number of 0 or more", _is_seconds),
        "tokens": (0, "a whole number of 0 or more", _is_count),
        "text": ("", "a text or a number", _is_text),
        "timed_out": (False, "true or false", _is_truth),
    }
)
"""The fields of a line of $NVLLM_PERQ: what stands for one that is missing, what it must be, and whether it is."""


def output_hash(answers: Sequence[Answered]) -> str:
    """Return the sha256 of what ANSWERS say, without how long they took."""
    rows: Json = [
        [answer.id, answer.correct, answer.found, answer.tokens, answer.text, answer.problem] for answer in answers
    ]
    return hashlib.sha256(canonical.encode(rows)).hexdigest()
