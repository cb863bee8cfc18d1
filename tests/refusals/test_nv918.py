"""NV918, wrong answers: in a trial, fewer answers were correct than the profile's evaluation asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.bless import evaluation
from nvllm.bless.preflight import BlessRequest
from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from nvllm.serve import startup
from support import evaluated
from support.bless_world import world
from support.plansamples import FrontEnd


def test_a_stable_cache_whose_engine_answers_wrongly(
    tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trials would agree with the bootstrap and with each other; nothing else finds that they are wrong."""
    monkeypatch.setattr(startup, "POLL", 0.005)
    root = evaluated.project(tmp_path)
    with world(tmp_path, front, evaluated.TEN) as made:
        made.work.asker, _ = evaluation.prepared(Project(root), made.places, made.found)
        front.at_request = evaluated.answering(front, root, right=8)
        with pytest.raises(Refused) as caught:
            made.work.run(BlessRequest(boots=5))
        (refusal,) = caught.value.refusals
        assert (refusal.code, refusal.where) == ("NV918", f"{made.found.plan.instance}: trial-1")
        assert refusal.expected == f"at least 9/10 correct of {evaluated.FILE}"
        assert refusal.found == "8 of 10 correct"
        answers = made.work.evidence / "trial-1/answers.jsonl"
        assert refusal.cure == f"less {answers}"
        assert answers.read_text().count('"correct":true') == 8
        assert not (made.work.evidence / "trial-2").exists()
        assert made.held.all() == ()
