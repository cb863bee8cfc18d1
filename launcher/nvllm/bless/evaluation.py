"""The evaluation of a bless: what the profile wants answered correctly, asked of the blessed engine in a trial."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from nvllm.cache import evaluation
from nvllm.cache.evaluation import Demand, EvaluationRecord
from nvllm.core import durable, proc
from nvllm.core.evaluation import Evaluation, QuestionEvaluation
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import Refusal, Refused
from nvllm.serve.examination import Examination
from nvllm.serve.startup import EngineStart
from nvllm.trials import answers, probe, questions
from nvllm.trials.probing import ProgramProbe, QuestionProbe
from nvllm.trials.questions import Question

ANSWERS = "answers.jsonl"
"""The file of a trial with every answer of the evaluation, one a line."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks what RULES say, which DEMAND identifies, by PROBE."""

    rules: Evaluation
    demand: Demand
    probe: QuestionProbe | ProgramProbe

    def ask(self, start: EngineStart, number: int) -> EvaluationRecord:
        """Ask the engine of START, in the trial NUMBER, and keep its answers beside its log; return what came out.

        Raises Refused NV911 if they cannot be written, and for a program what `bench.run_probe` raises.
        """
        if isinstance(self.probe, ProgramProbe):
            self.probe.programs.end_left()  # what a killed bless has left
        answered = self.probe.ask(start, number, lambda: None).answers
        written = answers.lines(answered)
        durable.replace(start.run.path / ANSWERS, written, 0o600)
        state = self.probe.state
        return EvaluationRecord(
            kind=self.rules.kind,
            file=self.rules.file,
            sha256=self.demand.sha256,
            asked_as=self.demand.asked_as,
            prompt=state.prompt,
            stop=state.stop,
            extraction=state.extraction,
            length=state.length,
            floor=self.rules.floor,
            asked=len(answered),
            correct=sum(answer.correct for answer in answered),
            timeouts=sum(answer.timed_out for answer in answered),
            answers=hashlib.sha256(written).hexdigest(),
        )


def prepared(project: Project, places: Places, examination: Examination) -> tuple[Asker | None, list[Refusal]]:
    """Return who asks the evaluation of the profile of EXAMINATION in PROJECT, None if it demands none, and problems.

    Those are NV109 for a file that cannot be read, NV851 for a line of it without a question, and NV802 for a program
    that cannot be run.
    """
    rules = examination.profile.bless.evaluation
    if rules is None:
        return None, []
    try:
        demand = evaluation.demanded(project, rules)
        path = project.root / rules.file
        if isinstance(rules, QuestionEvaluation):
            return Asker(rules, demand, _question_probe(rules, questions.load(path))), []
        ledger = places.state / "evidence" / "probes" / f"bless-{examination.plan.instance}"
        test = probe.program(path, (), "", build_only=False)
        return Asker(rules, demand, ProgramProbe(test, proc.Programs(ledger))), []
    except Refused as refused:
        return None, list(refused.refusals)


def _question_probe(rules: QuestionEvaluation, asked: Sequence[Question]) -> QuestionProbe:
    """Return what asks ASKED, one after the other, as RULES say."""
    asking = questions.asking(rules.prompt, rules.stop, rules.extraction)
    return QuestionProbe(
        rules.file, asked, seed=0, length=rules.length, timeout=None, concurrency=1, floor=None, asking=asking
    )
