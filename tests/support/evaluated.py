"""Evaluations for blessings on a made-up engine: a file of questions, and a front end that answers some of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from nvllm.core.evaluation import QuestionEvaluation
from nvllm.core.spec import BlessRules
from support import bless_world, question_samples
from support.plansamples import FrontEnd

FILE = "evaluations/sums.jsonl"
TEN = BlessRules(evaluation=QuestionEvaluation("questions", FILE, "9/10"))
"""An evaluation by ten questions, of which nine must be answered correctly."""


def project(tmp_path: Path, count: int = 10) -> Path:
    """Write COUNT questions into a project below TMP_PATH, and return its root."""
    root = tmp_path / "project"
    (root / FILE).parent.mkdir(parents=True)
    question_samples.write(root / FILE, count)
    return root


def answering(front: FrontEnd, root: Path, right: int) -> Callable[[bytes], None]:
    """Return what makes FRONT answer the first RIGHT questions of ROOT correctly; it goes to ``at_request``."""
    rows = [json.loads(line) for line in (root / FILE).read_text().splitlines()]
    numbers = {row["question"]: row["answer"].rpartition(" ")[2] for row in rows[:right]}

    def answer(body: bytes) -> None:
        prompt = json.loads(body)["prompt"]
        asked = prompt.removeprefix("Question: ").removesuffix("\nAnswer:") if isinstance(prompt, str) else ""
        if isinstance(prompt, str) and prompt.startswith("Question: "):
            choice = {"text": f" It is {numbers.get(asked, -1)}.", "token_ids": [1, 2]}
            front.body = json.dumps({"choices": [choice], "usage": {"completion_tokens": 2}}).encode()
        else:
            front.body = bless_world.answer(bless_world.TOKENS)

    return answer


def questions_asked(front: FrontEnd) -> int:
    """Return how many questions of evaluations FRONT was asked."""
    return sum(b"Question: " in body for body in front.asked)
