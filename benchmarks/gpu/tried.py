"""Print what alternatives.py measured, as docs/gpu.md has it: `python -m benchmarks.gpu.tried FILE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.shapes import COUNTS

KINDS = {"queued": "Queued behind other work", "alone": "On an idle GPU", "host": "The host's time of a call"}


def tables(results: Mapping[str, Any]) -> str:
    """Return the tables of RESULTS, medians in us."""
    about = results["environment"]
    head = ["way", *map(str, COUNTS)]
    text = (
        f"{about['gpu']}, driver {about['driver']}, torch {about['torch']}, Triton {about['triton']}, {about['date']}\n"
    )
    for kind, title in KINDS.items():
        rows = [
            [name, *(f"{by[str(count)][kind]['median']:,.1f}" if kind in by[str(count)] else "" for count in COUNTS)]
            for name, by in results["alternatives"].items()
        ]
        widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
        lines = [head, ["-" * width for width in widths], *rows]
        table = "".join(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |\n"
            for row in lines
        )
        text += f"\n{title}, in us:\n\n{table}"
    return text


if __name__ == "__main__":
    sys.stdout.write(tables(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
