"""Every code is provoked by a test, is documented, and reads as a code should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from nvllm.core.catalogue import BLAMES, CODES, Blame

ROOT = Path(__file__).parents[3]


def test_a_test_provokes_each_code() -> None:
    texts = {path: path.read_text() for path in (ROOT / "tests/refusals").glob("test_nv*.py")}
    assert [
        code
        for code in CODES
        if not any(path.name.startswith(f"test_{code.lower()}") and code in text for path, text in texts.items())
    ] == []


def test_no_refusal_test_is_for_a_code_that_does_not_exist() -> None:
    tested = {path.name[5:10].upper() for path in (ROOT / "tests/refusals").glob("test_nv*.py")}
    assert tested <= set(CODES)


def test_the_page_is_the_generated_one_and_holds_every_code_once(tmp_path: Path) -> None:
    page = tmp_path / "refusals.md"
    subprocess.run([sys.executable, ROOT / "tools/refusal_docs.py", page], check=True)
    assert (ROOT / "docs/refusals.md").read_text() == page.read_text(), "run `make docs`"
    assert sorted(re.findall(r"^\| (NV\d+) \|", page.read_text(), re.MULTILINE)) == sorted(CODES)


def test_an_entry_is_a_short_title_and_a_sentence() -> None:
    assert [
        code
        for code, entry in CODES.items()
        if not re.fullmatch(r"NV[1-9]\d\d", code)
        or len(entry.title.split()) > 5
        or entry.title.endswith(".")
        or not entry.meaning.endswith(".")
    ] == []


def test_only_codes_of_the_catalogue_have_a_blame() -> None:
    assert BLAMES.keys() <= CODES.keys()
    assert set(BLAMES.values()) == set(get_args(Blame))
