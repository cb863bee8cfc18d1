"""Questions: what is read, what is drawn, and which number a text answers with."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core import parts
from nvllm.core.evaluation import PROMPT
from nvllm.core.refusal import Refused
from nvllm.trials import grading, questions
from nvllm.trials.questions import Question
from support import question_samples
from support.rows import each_row


def test_questions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "How many?", "answer": "It is $1,200.50.\\n#### 1,200.50", "more": 1}\n\n')
    (found,) = questions.load(path)
    assert (found.id, found.number) == (1, "1200.50")
    assert questions.DEFAULT.prompt_of(found) == "Question: How many?\nAnswer:"


def test_the_generated_set_has_answers_that_are_right(tmp_path: Path) -> None:
    for one in questions.load(question_samples.write(tmp_path / "q.jsonl", 20)):
        first, second = [int(word.rstrip(".")) for word in one.text.split() if word.rstrip(".").isdigit()]
        assert one.number == str(first + second)


def test_a_seed_draws_the_same_questions(tmp_path: Path) -> None:
    every = questions.load(question_samples.write(tmp_path / "q.jsonl", 20))
    some = questions.drawn(every, 5, 42)
    assert some == questions.drawn(every, 5, 42)
    assert some != questions.drawn(every, 5, 43)
    assert [one.id for one in some] == sorted(one.id for one in some)
    assert questions.drawn(every, None, 1) == questions.drawn(every, 99, 1) == every
    hashes = {questions.prompts_hash(asked, questions.DEFAULT) for asked in (some, every)}
    assert len(hashes) == 2


def test_a_prompt_and_its_stops() -> None:
    seeds = questions.asking("Q: {question}\nA: Let me solve this step by step.", (), "strict")
    assert seeds.stop == ("Q:", "</s>", "<|im_end|>")
    (question,) = [Question(1, "How {many}?", "3")]
    assert seeds.prompt_of(question) == "Q: How {many}?\nA: Let me solve this step by step."
    assert questions.asking(PROMPT, (), "flexible") == questions.DEFAULT
    assert questions.asking("{question}", ("END",), "flexible").stop == ("END",)
    assert questions.asking("{question}", (), "flexible").stop == grading.STOPS
    hashes = {
        questions.prompts_hash([question], each)
        for each in (seeds, questions.DEFAULT, questions.asking(PROMPT, ("END",), "flexible"))
    }
    assert len(hashes) == 3


@each_row(
    ("text", "part"),
    [("45/50", 0.9), ("90%", 0.9), ("0/50", 0.0), ("100%", 1.0), ("12.5%", 0.125), ("3/100", 0.03)],
)
def test_a_part(text: str, part: float) -> None:
    assert parts.part(text) == pytest.approx(part)


@each_row("text", ["45", "0.9", "51/50", "101%", "5/0", "-1%", "", "45 / 50", "%", "1e2%"])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(ValueError, match=r"which is"):
        parts.part(text)


def test_a_file_of_another_kind_is_not_refused_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("\n".join(map(str, range(20_000))))
    with pytest.raises(Refused) as caught:
        questions.load(path)
    assert [one.where for one in caught.value.refusals] == [f"{path}:{number}" for number in range(1, 21)]
    assert caught.value.refusals[-1].found == "19; further lines are not shown"


def test_a_byte_order_mark_and_line_ends_of_windows_are_no_problem(tmp_path: Path) -> None:
    lines = [f'{{"question": "{one}?", "answer": "#### {one}"}}' for one in (1, 2)]
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    assert [(one.id, one.number) for one in questions.load(path)] == [(1, "1"), (3, "2")]


def test_twenty_megabytes_of_questions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(f'{{"question": "{"x" * 1_000_000}", "answer": "#### 1"}}\n' * 20)
    assert len(questions.load(path)) == 20
