"""The phases of a start to its first token: without the patches that only make starts shorter, and with them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nvllm.cli import terminal

PATCHES = ("inspect-in-process", "engine-core-fork")
"""What makes starts shorter and changes nothing else."""

Phases = Mapping[str, float]


def without(spec: str) -> str:
    """Return the text SPEC of an image spec with `PATCHES` taken out of those that it enables.

    Raises ValueError if it enables none of them: there is nothing to compare.
    """
    lines = spec.splitlines(keepends=True)
    kept = [line for line in lines if line.split()[:2] not in [["-", patch] for patch in PATCHES]]
    if len(kept) == len(lines):
        raise ValueError(f"images/cpu.yaml enables none of {', '.join(PATCHES)}")
    return "".join(kept)


def compare(spec: Path, start: Callable[[], Phases], times: int) -> None:
    """Print the median phases of TIMES starts of each of two patch sets, in turns; the file SPEC asks for them."""
    patched = spec.read_text(encoding="utf-8")
    sets = {"without": without(patched), "with": patched}
    starts: dict[str, list[Phases]] = {name: [] for name in sets}
    for _ in range(times):
        for name, text in sets.items():
            spec.write_text(text, encoding="utf-8")
            starts[name].append(start())
    print(f"The phases of a start of tiny-eager; in the second column with {', '.join(PATCHES)}; median of {times}\n")
    terminal.print_table(["phase", "without", "with", "with / without"], list(_rows(starts)), color=False)
    print()


def read(state: Path) -> Phases:
    """Return the phases of the start whose state.json is STATE, and their sum."""
    phases = {str(name): float(seconds) for name, seconds in json.loads(state.read_bytes())["phases"]}
    return {**phases, "all": sum(phases.values())}


def _rows(starts: Mapping[str, Sequence[Phases]]) -> list[list[str]]:
    rows = []
    for phase in starts["with"][0]:
        before, after = (statistics.median(phases[phase] for phases in starts[name]) for name in ("without", "with"))
        ratio = f"{after / before:.2f}" if before >= 1 else ""
        rows.append([phase, f"{before:.1f} s", f"{after:.1f} s", ratio])
    return rows
