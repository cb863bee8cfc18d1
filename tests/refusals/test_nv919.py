"""NV919, not evaluated: the blessing lacks the evaluation that the profile demands, or came out below its floor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nvllm.cache import evaluation, promotion
from nvllm.cache.evaluation import Demand, EvaluationRecord
from nvllm.cache.manifest import Manifest
from nvllm.core.evaluation import QuestionEvaluation
from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from support import evaluated
from support.blessings_world import CURE, TREE, bless, blessings, query

RULES = QuestionEvaluation("questions", evaluated.FILE, "9/10")


def blessed(demand: Demand, correct: int) -> Manifest:
    """Return a manifest whose first trial was asked what DEMAND names, with so many CORRECT answers of ten."""
    asked = EvaluationRecord(
        "questions", demand.file, demand.sha256, demand.asked_as, "{question}", ("Q",), "strict", 8, "1/10", 10,
        correct, 0, 64 * "a",
    )  # fmt: skip
    manifest = bless(TREE)
    return replace(manifest, trials=(replace(manifest.trials[0], evaluation=asked), *manifest.trials[1:]))


def test_what_a_blessing_must_have_been_asked(tmp_path: Path) -> None:
    project = Project(evaluated.project(tmp_path))
    demand = evaluation.demanded(project, RULES)
    otherwise = evaluation.demanded(project, replace(RULES, length=16))
    (project.root / RULES.file).write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    edited = evaluation.demanded(project, RULES)
    short = demand.sha256[:12]
    rows = {
        "without one": (bless(TREE), demand, "none"),
        "good": (blessed(demand, 9), demand, ""),
        "a lower floor now": (blessed(demand, 9), replace(demand, floor="50%"), ""),
        "a higher floor now": (blessed(demand, 9), replace(demand, floor="95%"), "9 of 10 correct"),
        "another file now": (blessed(demand, 10), edited, f"{RULES.file}: another file, sha256 {short}"),
        "asked otherwise": (blessed(otherwise, 10), demand, f"{RULES.file}: the same file, asked in another way"),
    }
    wrong = []
    for name, (manifest, demanded, expected) in rows.items():
        held = blessings(tmp_path / name)
        path = promotion.promote(held, manifest)
        actual, problems = "", []
        try:
            held.lookup(query(evaluation=demanded))
        except Refused as refused:
            (one,) = refused.refusals
            actual = one.found
            problems = [] if (one.code, one.where, one.cure) == ("NV919", str(path), CURE) else [one]
        if problems or not actual.startswith(expected) or bool(actual) != bool(expected):
            wrong.append((name, expected, actual, problems))
    assert wrong == []
