"""Which number a text answers with, and whether it is the right one: by the rules of lm-eval's task ``gsm8k``.

A figure of nvllm can so be compared with those that others publish. test_grading.py asks lm-eval itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from nvllm.core.evaluation import Extraction

_PATTERNS: Mapping[Extraction, re.Pattern[str]] = MappingProxyType(
    {
        "strict": re.compile(r"#### (-?[0-9.,]+)"),
        "flexible": re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+"),
    }
)
_IGNORED = (re.compile(","), re.compile(r"\$"), re.compile(r"(?s).*#### "), re.compile(r"\.$"))

STOPS = ("</s>", "<|im_end|>")
"""Texts that end an answer besides the beginning of the next question, in lm-eval's task."""


def extracted(text: str, extraction: Extraction) -> str:
    """Return what TEXT answers with; empty if it has no such number."""
    matches = _PATTERNS[extraction].findall(text)
    return matches[0 if extraction == "strict" else -1] if matches else ""


def same(answer: str, expected: str) -> bool:
    """Return whether ANSWER is the EXPECTED one. ``$1,234.`` is ``1234``, and ``72.0`` is not ``72``."""
    return bool(answer) and normal(answer) == normal(expected)


def normal(answer: str) -> str:
    """Return ANSWER without what is ignored: commas, dollar signs, all before ``####``, and a point at its end."""
    for pattern in _IGNORED:
        answer = pattern.sub("", answer)
    return answer.lower()


def next_question(prompt: str) -> str:
    """Return what stands before the question in PROMPT: where an answer goes on with it, a question is invented."""
    return prompt.partition("{question}")[0].strip()
