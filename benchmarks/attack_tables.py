"""The crash, race and tamper tables: every boundary or file is attacked while this runs, as the unit tests do it.

`python benchmarks/attack_tables.py [DIRECTORY]` prints them; what is attacked lies in DIRECTORY, a temporary one by
default. It ends with a traceback if anything half is found: a table is printed of what holds only.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("launcher", "tests")]

from support import boundaries, tampering  # noqa: E402
from support.attacked import SCENARIOS  # noqa: E402
from support.boundaries import WAYS, Scenario, Way  # noqa: E402


def crashes(directory: Path) -> None:
    print("At each boundary (a system call that changes a file, or the middle of a write) the process ends, and the")
    print("next command finds the old or the new, never half; then it goes on: points, of them old + new\n")
    print(f"| what is written | {' | '.join(WAYS)} |")
    print(f"|---|{'---|' * len(WAYS)}")
    for name, scenario in SCENARIOS.items():
        print(f"| {name} | {' | '.join(_ended(scenario, way, directory) for way in WAYS)} |", flush=True)


def _ended(scenario: Scenario, way: Way, directory: Path) -> str:
    states = [outcome.found for outcome in boundaries.fail(scenario, way, directory)]
    return f"{len(states)}: {states.count('old')} + {states.count('new')}"


def races(directory: Path) -> None:
    print("\nAt each boundary a process is held while another does the same as far as it can; then both go on\n")
    print("| what is written | points | both done | one refused | neither came through |")
    print("|---|---|---|---|---|")
    for name, scenario in SCENARIOS.items():
        outcomes = list(boundaries.race(scenario, directory))
        both = sum(set(outcome.said) == {"done"} for outcome in outcomes)
        lost = sum(not outcome.found.startswith("new") for outcome in outcomes)
        print(f"| {name} | {len(outcomes)} | {both} | {len(outcomes) - both} | {lost} |", flush=True)


def tamperings(directory: Path) -> None:
    print(f"\nEach of the {len(tampering.SIZES)} files of a blessed cache is tampered with; refused, with its name\n")
    print("| tampering | the stored tree, before the start | the mounted copy, by the gate | by the later looks |")
    print("|---|---|---|---|")
    # Only root can give a file away.
    for name in (*tampering.TAMPERINGS, *tampering.SWAPS, *(["chown"] if os.geteuid() == 0 else [])):
        outcomes = list(tampering.matrix(directory, name))
        refused = [
            sum(getattr(outcome, by) for outcome in outcomes) for by in ("before_start", "by_gate", "by_recheck")
        ]
        print(f"| {name} | {' | '.join(f'{count} of {len(outcomes)}' for count in refused)} |", flush=True)


def main(argv: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="nvllm-attacks-", dir=argv[0] if argv else None) as directory:
        crashes(Path(directory))
        races(Path(directory))
        tamperings(Path(directory))


if __name__ == "__main__":
    main(sys.argv[1:])
