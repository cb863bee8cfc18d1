"""The linters are tests, so that no other command has to be remembered.

mypy reads 1,059 files for 20 s of a processor where it has no cache, so `make unit` leaves it to `make lint`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "argv",
    [
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        pytest.param(["mypy"], marks=pytest.mark.thorough),
        ["lint-imports", "--no-cache"],
    ],
    ids=" ".join,
)
def test_linter(argv: list[str]) -> None:
    program = Path(sys.executable).with_name(argv[0])
    done = subprocess.run([program, *argv[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
