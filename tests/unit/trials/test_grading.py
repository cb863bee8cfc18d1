"""Grading: a table of answers, graded as lm-eval's gsm8k grades them; lm-eval is asked where it is installed."""

from __future__ import annotations

import importlib
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.evaluation import PROMPT, Extraction
from nvllm.trials import grading

ANSWERS: tuple[tuple[str, str, bool, bool], ...] = (
    (" 40 + 32 = 72. #### 72", "72", True, True),
    (" 40 + 32 = 72.\n#### 72", "72", True, True),
    (" The answer is 72.", "72", False, True),
    (" 72", "72", False, True),
    ("72", "72", False, True),
    (" 72\nQuestion: Tom has 5 figs and eats 2. How many?\nAnswer: 3", "72", False, False),
    (" #### 72\n\nQuestion: Tom has 5 figs.\nAnswer: #### 5", "72", True, False),
    (" 18 is it, and 5 more", "18", False, False),
    ("#### 18\nand 5 more", "18", True, False),
    ("####18", "18", False, True),
    ("### 18", "18", False, True),
    ("#### $18", "18", False, True),
    ("#### 18 dollars", "18", True, True),
    ("####  18", "18", False, True),
    ("It costs $1,234.50", "1234.50", False, True),
    ("It costs $1,234.50.", "1234.50", False, True),
    ("#### 1,234.50", "1,234.50", True, True),
    ("#### 1234.5", "1234.50", False, False),
    ("It costs 1234.5", "1,234.50", False, False),
    ("#### $1,234.50", "1234.50", False, True),
    ("#### 1,000", "1000", True, True),
    ("#### 1000", "1,000", True, True),
    ("It is 1,000.", "1000", False, True),
    ("It is 1.000", "1000", False, False),
    ("It is 1 000", "1000", False, False),
    ("#### -5", "-5", True, True),
    ("It is -5", "-5", False, True),
    ("It is -5 degrees", "-5", False, True),
    ("It is minus 5", "-5", False, False),
    ("10-5", "5", False, False),
    ("10 - 5 = 5", "5", False, True),
    ("It is - 5", "-5", False, False),
    ("#### \u22125", "-5", False, False),
    ("It is 3/4", "0.75", False, False),
    ("It is 3/4", "3/4", False, False),
    ("#### 3/4", "3", True, False),
    ("3 1/2 hours", "3.5", False, False),
    ("\\frac{1}{2}", "0.5", False, False),
    ("0.5", "1/2", False, False),
    ("It is 5 km", "5", False, True),
    ("5km", "5", False, True),
    ("It takes 5h30", "5", False, False),
    ("20% of them", "20", False, True),
    ("It is 20 %", "20", False, True),
    ("5\u20ac", "5", False, True),
    ("$5", "5", False, True),
    ("USD 5.00", "5", False, False),
    ("\xa35.50", "5.5", False, False),
    ("\\boxed{72}", "72", False, True),
    ("The answer is $\\boxed{72}$.", "72", False, False),
    ("\\boxed{1,000}", "1000", False, True),
    ("\\boxed{\\$72}", "72", False, True),
    ("$72$", "72", False, True),
    ("no number at all", "72", False, False),
    ("", "72", False, False),
    ("seventy-two", "72", False, False),
    ("...", "72", False, False),
    ("####", "72", False, False),
    ("#### none", "72", False, False),
    ("$", "72", False, False),
    ("<think>It is 71 or 72.</think> 72", "72", False, True),
    ("<think>72</think> I do not know", "72", False, True),
    ("**72**", "72", False, True),
    ("72!", "72", False, True),
    ("72.0", "72", False, False),
    ("072", "72", False, False),
    ("7 2", "72", False, False),
    ("72,", "72", False, True),
    ("72..", "72", False, False),
    ("Answer: 72 (see 3.)", "72", False, False),
)
"""A text, what is right, and whether lm-eval calls it right by its strict and by its flexible filter."""

EXTRACTIONS: tuple[tuple[Extraction, str], ...] = (("strict", "strict-match"), ("flexible", "flexible-extract"))


def test_answers_are_graded_as_lm_eval_grades_them() -> None:
    wrong = []
    for text, expected, *rights in ANSWERS:
        for (extraction, _), right in zip(EXTRACTIONS, rights, strict=True):
            if grading.same(grading.extracted(text, extraction), expected) is not right:
                wrong.append((extraction, text, expected, grading.extracted(text, extraction)))
    assert wrong == []
    assert len(ANSWERS) >= 60


@pytest.mark.skipif(util.find_spec("lm_eval") is None, reason="lm-eval is not installed: the extra `eval`")
def test_lm_eval_grades_these_answers_so() -> None:
    extraction: Any = importlib.import_module("lm_eval.filters.extraction")
    metrics: Any = importlib.import_module("lm_eval.api.metrics")
    package = Path(str(importlib.import_module("lm_eval").__file__)).parent
    task = yaml.safe_load((package / "tasks/gsm8k/gsm8k.yaml").read_text())
    (metric,) = task["metric_list"]
    ignored = {name: value for name, value in metric.items() if name.startswith(("ignore", "regexes"))}
    assert task["doc_to_text"] == PROMPT.replace("{question}", "{{question}}")
    assert task["generation_kwargs"]["until"] == [grading.next_question(PROMPT), *grading.STOPS]
    filters = {
        one["name"]: {name: value for name, value in one["filter"][0].items() if name != "function"}
        for one in task["filter_list"]
    }
    wrong = []
    for text, expected, *rights in ANSWERS:
        for (_, name), right in zip(EXTRACTIONS, rights, strict=True):
            [[reply]] = extraction.RegexFilter(**filters[name]).apply([[text]], [{}])
            score = metrics.exact_match_hf_evaluate([reply], [expected], **ignored)["exact_match"]
            if bool(score) is not right:
                wrong.append((name, text, expected, reply))
    assert wrong == []


@given(st.integers(-(10**12), 10**12))
def test_a_number_is_itself_however_it_is_written(value: int) -> None:
    for text in (f"#### {value:,}", f"#### {value}."):
        for extraction, _ in EXTRACTIONS:
            assert grading.same(grading.extracted(text, extraction), str(value)), text


@given(st.text())
def test_any_text_has_a_number_or_none(text: str) -> None:
    for extraction, _ in EXTRACTIONS:
        assert isinstance(grading.same(grading.extracted(text, extraction), "1"), bool)
