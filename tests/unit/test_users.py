"""docs/users.md: each row of the table names a test that is there, and each test of the users stands in a row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| .* \| `(tests/\S+\.py)::(\w+)` \|$", (ROOT / "docs/users.md").read_text("utf-8"), re.MULTILINE)


def test_each_row_is_a_test() -> None:
    assert len(ROWS) == (ROOT / "docs/users.md").read_text("utf-8").count("\n| ") - 1
    for path, name in ROWS:
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), name


def test_each_test_is_a_row() -> None:
    path = "tests/e2e/test_users.py"
    tests = re.findall(r"^def (test_\w+)\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    assert {name for row, name in ROWS if row == path} == set(tests)
