"""NV857: a prompt has no place for the question, or a stop string ends nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvllm.cli.main import main
from support import question_samples
from support.engine_world import ROOT


def test_a_prompt_without_a_question_and_an_empty_stop_are_refused_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = question_samples.write(tmp_path / "questions.jsonl", 2)
    words = ["eval", "gsm8k", "--image", "cpu", "--profile", "tiny-eager", "--data", str(data), "--dry-run"]
    assert main(["--project", str(ROOT), "--json", *words, "--prompt", "Q: ", "--stop", ""]) == 2
    refusals = json.loads(capsys.readouterr().out)["refusals"]
    assert [(one["code"], one["where"]) for one in refusals] == [("NV857", "--prompt"), ("NV857", "--stop")]
    assert main(["--project", str(ROOT), "--json", *words, "--prompt", "Q: {question}", "--stop", "Q:"]) == 0
