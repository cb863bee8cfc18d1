"""Questions: what is read, what is drawn, and which number a text answers with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.refusal import Refused
from nvllm.evidence import questions
from support import question_samples
from support.rows import each_row


def test_questions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "How many?", "answer": "It is $1,200.50.\\n#### 1,200.50", "more": 1}\n\n')
    (found,) = questions.load(path)
    assert (found.id, found.number, found.prompt) == (1, "1200.5", "Question: How many?\nAnswer:")


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
    assert questions.prompts_hash(some) != questions.prompts_hash(every)


@each_row(
    ("text", "number"),
    [
        ("so 3 + 4 = 7", "7"),
        ("#### 18\nand 5 more", "18"),
        ("#### $1,000.00", "1000"),
        ("-0.50 degrees", "-0.5"),
        ("0", "0"),
        ("007", "7"),
        ("100", "100"),
        ("no number", ""),
        ("9" * 100, ""),
    ],
)
def test_the_number_of_an_answer(text: str, number: str) -> None:
    assert questions.final_number(text) == number


@given(st.integers(-(10**12), 10**12))
def test_a_number_is_itself_however_it_is_written(value: int) -> None:
    assert questions.final_number(f"#### {value:,}.00") == questions.final_number(f"is {value}") == str(value)


@given(st.text())
def test_any_text_has_a_number_or_none(text: str) -> None:
    assert isinstance(questions.final_number(text), str)


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
