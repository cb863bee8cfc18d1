"""Every code is provoked by a test, is documented, and reads as a code should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from nvllm.core.catalogue import BLAMES, CODES, Blame

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_test_provokes_the_code(code: str) -> None:
    tests = sorted((ROOT / "tests/refusals").glob(f"test_{code.lower()}*.py"))
    assert tests, f"no tests/refusals/test_{code.lower()}.py provokes {code} ({CODES[code].title})"
    assert any(code in path.read_text() for path in tests)


def test_no_refusal_test_is_for_a_code_that_does_not_exist() -> None:
    tested = {path.name[5:10].upper() for path in (ROOT / "tests/refusals").glob("test_nv*.py")}
    assert tested <= set(CODES)


def test_the_page_is_the_generated_one_and_holds_every_code_once(tmp_path: Path) -> None:
    page = tmp_path / "refusals.md"
    subprocess.run([sys.executable, ROOT / "tools/refusal_docs.py", page], check=True)
    assert (ROOT / "docs/refusals.md").read_text() == page.read_text(), "run `make docs`"
    assert sorted(re.findall(r"^\| (NV\d+) \|", page.read_text(), re.MULTILINE)) == sorted(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_entry_is_a_short_title_and_a_sentence(code: str) -> None:
    entry = CODES[code]
    assert re.fullmatch(r"NV[1-9]\d\d", code)
    assert len(entry.title.split()) <= 5
    assert not entry.title.endswith(".")
    assert entry.meaning.endswith(".")


def test_only_codes_of_the_catalogue_have_a_blame() -> None:
    assert BLAMES.keys() <= CODES.keys()
    assert set(BLAMES.values()) == set(get_args(Blame))
