"""The parts of the bench of starts that need no engine: which patch sets are compared, and what is read of a start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import start_bench

ROOT = Path(__file__).parents[2]


def test_it_compares_the_image_as_it_is_with_one_that_lacks_the_patches_alone() -> None:
    spec = (ROOT / "images/cpu.yaml").read_text(encoding="utf-8")
    lacking = start_bench.without(spec)
    gone = [line.split()[1] for line in spec.splitlines() if line not in lacking.splitlines()]
    assert gone == list(start_bench.PATCHES)


def test_an_image_with_none_of_the_patches_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="enables none of inspect-in-process"):
        start_bench.without("patches:\n  enable:\n    - sentinels # of another room\n")


def test_the_phases_of_both_are_printed_with_their_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, state = tmp_path / "spec.yaml", tmp_path / "state.json"
    text = "enable:\n    - sentinels\n    - inspect-in-process\n"
    spec.write_text(text)
    asked = []

    def start() -> start_bench.Phases:
        asked.append(spec.read_text())
        seconds = 5.0 if "inspect-in-process" in asked[-1] else 20.0
        state.write_text(json.dumps({"phases": [["gate", 0.25], ["first token", seconds]]}))
        return start_bench.read(state)

    start_bench.compare(spec, start, 2)
    assert asked == ["enable:\n    - sentinels\n", text] * 2
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[-4:-1] == [
        ["gate", "0.2 s", "0.2 s"],
        ["first token", "20.0 s", "5.0 s", "0.25"],
        ["all", "20.2 s", "5.2 s", "0.26"],
    ]
    assert spec.read_text() == text
