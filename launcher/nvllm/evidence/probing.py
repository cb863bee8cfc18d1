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
from typing import Any, Protocol

from nvllm.core import canonical, proc, reading
from nvllm.core.canonical import Json
from nvllm.core.plan import LaunchPlan
from nvllm.evidence import questions
from nvllm.evidence.questions import Question
from nvllm.evidence.records import Answered, ProbeState, unanswered
from nvllm.serve import health
from nvllm.serve.health import NotInTime, NotReady
from nvllm.serve.startup import EngineStart
from nvllm.trials import bench
from nvllm.trials.trial import BisectProbe

KEPT = 4000
"""Characters of an answer that are kept."""


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
    """QUESTIONS, each asked once, greedily, CONCURRENCY at a time. An answer has LENGTH tokens and TIMEOUT seconds."""

    name: str
    questions: Sequence[Question]
    seed: int
    length: int
    timeout: float
    concurrency: int
    floor: float | None

    @property
    def state(self) -> ProbeState:
        return ProbeState(
            self.name,
            questions.prompts_hash(self.questions),
            len(self.questions),
            self.seed,
            self.length,
            self.timeout,
            self.concurrency,
            self.floor,
        )

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        plan, middle = start.plan, len(self.questions) // 2
        with ThreadPoolExecutor(max_workers=self.concurrency) as pool:
            first = [*pool.map(lambda question: self._ask(plan, run, question), self.questions[:middle])]
            halfway()
            return Asked((*first, *pool.map(lambda question: self._ask(plan, run, question), self.questions[middle:])))

    def _ask(self, plan: LaunchPlan, run: int, question: Question) -> Answered:
        fields: dict[str, Json] = {"prompt": question.prompt, "max_tokens": self.length, "seed": self.seed}
        began = time.monotonic()
        text, tokens, problem, timed_out = "", 0, "", False
        try:
            status, body = health.ask(plan, {**fields, **health.GREEDY}, self.timeout)
            if status == 200:
                text, tokens = _completion(body)
            else:
                problem = f"HTTP {status}: {body[:200]}"
        except NotReady as error:
            problem, timed_out = error.found, isinstance(error, NotInTime)
        number = questions.final_number(text)
        seconds = round(time.monotonic() - began, 4)
        correct = number == question.number
        return Answered(
            run, question.id, correct, question.number, number, seconds, tokens, text[:KEPT], problem, timed_out
        )


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
            given = {"NVLLM_ADDRESS": address, "NVLLM_MODEL": plan.request_name, "NVLLM_PERQ": str(written)}
            given["NVLLM_RUN"] = str(run)
            trial = bench.run_probe(self.test, given, start.run.log, began, self.programs).trial
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
    match document:
        case {"id": int(id), "correct": bool(correct), **rest}:
            texts = [str(rest.get(name, "")) for name in ("expected", "found", "text")]
            seconds, tokens = rest.get("seconds", 0.0), rest.get("tokens", 0)
            if isinstance(seconds, int | float) and isinstance(tokens, int) and seconds >= 0 and tokens >= 0:
                expected, reply, text = texts
                return Answered(run, id, correct, expected, reply, float(seconds), tokens, text[:KEPT])
    text = line[:80].decode("utf-8", "replace")
    return unanswered(run, f"line {number} of $NVLLM_PERQ is no answer: {text}", number)


def output_hash(answers: Sequence[Answered]) -> str:
    """Return the sha256 of what ANSWERS say, without how long they took."""
    rows: Json = [[one.id, one.correct, one.found, one.tokens, one.text, one.problem] for one in answers]
    return hashlib.sha256(canonical.encode(rows)).hexdigest()
