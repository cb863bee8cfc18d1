"""Every code is provoked by a test, is documented, and reads as a code should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvllm.core.catalogue import CODES
from nvllm.core.refusaldocs import render

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_test_provokes_the_code(code: str) -> None:
    tests = sorted((ROOT / "tests/refusals").glob(f"test_{code.lower()}*.py"))
    assert tests, f"no tests/refusals/test_{code.lower()}.py provokes {code} ({CODES[code].title})"
    assert any(code in path.read_text() for path in tests)


def test_no_refusal_test_is_for_a_code_that_does_not_exist() -> None:
    tested = {path.name[5:10].upper() for path in (ROOT / "tests/refusals").glob("test_nv*.py")}
    assert tested <= set(CODES)


def test_the_page_is_the_generated_one() -> None:
    assert (ROOT / "docs/refusals.md").read_text() == render(), "run `make docs`"


def test_the_page_holds_every_code_once() -> None:
    assert sorted(re.findall(r"^\| (NV\d+) \|", render(), re.MULTILINE)) == sorted(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_entry_is_a_short_title_and_a_sentence(code: str) -> None:
    entry = CODES[code]
    assert re.fullmatch(r"NV[1-9]\d\d", code)
    assert len(entry.title.split()) <= 5
    assert not entry.title.endswith(".")
    assert entry.meaning.endswith(".")
