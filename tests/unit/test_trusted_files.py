"""Each file that nvllm trusts, in each bad condition: the table of `support/trusted_table.py`, and its page."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support import trusted_table
from support.trusted_table import ROWS

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_every_trusted_file_in_every_condition() -> None:
    wrong = []
    for row in ROWS:
        for condition, answer in trusted_table.answers(row).items():
            expected = {trusted_table.GOOD: row.usual, **row.answers}[condition]
            if answer != expected:
                wrong.append(f"{row.name}, {condition}: {answer}, expected {expected}")
    assert wrong == []


def test_the_page_is_what_make_docs_writes() -> None:
    path = ROOT / "tools/trusted_files.py"
    spec = importlib.util.spec_from_file_location("trusted_files", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (ROOT / "docs/trusted-files.md").read_text(encoding="utf-8") == tool.render(), "run make docs"
