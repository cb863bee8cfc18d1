"""NV851: a line of a file of questions is no question."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.trials import questions

LINES = """{"question": "How many?", "answer": "It is\\n#### 3"}
{"question": "How many?", "answer": "three"}
[1]
not JSON
"""


def test_every_line_without_a_question_is_told(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(LINES)
    with pytest.raises(Refused) as caught:
        questions.load(path)
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV851", f"{path}:{n}") for n in (2, 3, 4)]
    assert caught.value.exit_code == 2
    assert {one.cure for one in caught.value.refusals} == {f"sed -i '2d;3d;4d' {path}"}


def test_a_file_without_a_question_is_told(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n")
    with pytest.raises(Refused) as caught:
        questions.load(path)
    assert [one.code for one in caught.value.refusals] == ["NV851"]
