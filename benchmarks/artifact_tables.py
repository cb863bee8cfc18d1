"""How often a flaky bisect is wrong if failure rates differ between builds or change with time, and what it costs.

`python benchmarks/artifact_tables.py [RUNS [LAUNCHER]]` prints a row for each correlation of the trials of one build,
one for builds that cannot differ, and one for each way in which rates change with time. A row has RUNS cases (default
300) of a class of `tests/support/bisect_landscapes.py`. LAUNCHER is the directory `launcher` of another version of
nvllm, which then searches the same cases. Nothing was tuned on these cases: their seed is used nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from multiprocessing import Pool
from pathlib import Path

ROOT = Path(__file__).parents[1]
if __name__ == "__main__" and sys.argv[1:2] != ["--case"]:
    sys.path[:0] = [str(ROOT / "launcher")]
sys.path[:0] = [str(ROOT / "tests")]

from nvllm.bisect.posterior import Beta  # noqa: E402
from nvllm.core.refusal import Refused  # noqa: E402
from support.bisect_landscapes import CHANGES, CORRELATIONS, LANDSCAPES  # noqa: E402
from support.bisect_world import World  # noqa: E402

SEED = "held out"


@dataclass(frozen=True, slots=True)
class Case:
    """What one search came to. DIFFERS: it says that builds differ, or may. REFUSED: an end was refused."""

    trials: int
    builds: int
    certified: bool = False
    right: bool = False
    differs: bool = False
    refused: bool = False


BY_FACT = "builds cannot differ"
"""The landscape that earlier versions have no model for."""

CLASSES = {
    "0, by fact": BY_FACT,
    **{f"{one:g}": f"builds differ {one:g}" for one in CORRELATIONS},
    **{one: one for one in CHANGES},
}
"""The landscape of each row."""


def search(drawn: tuple[str, int]) -> Case:
    """Search the case of the landscape and with the number DRAWN."""
    name, number = drawn
    case = LANDSCAPES[name](random.Random(f"{name}/{SEED}/{number}"))
    world, done = World(case.judge), None
    with contextlib.suppress(Refused):
        done = world.solve(case.problem)
    if done is None:
        return Case(world.trials, world.builds, refused=True)
    spread = asdict(done).get("spread")  # versions that pool the trials of all builds have none
    differs = spread is not None and (spread["differs"] or not spread["mixed"])
    right = frozenset(done.culprits) == case.cause
    return Case(world.trials, world.builds, certified=done.certified, right=right, differs=differs)


def searched(launcher: Path, name: str, runs: int) -> list[Case]:
    """Return what the nvllm in LAUNCHER comes to in RUNS cases of the landscape NAME."""
    command = [sys.executable, __file__, "--case", name, f"{runs}"]
    environment = {**os.environ, "PYTHONPATH": str(launcher)}
    written = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return [Case(**fields) for fields in json.loads(written.stdout)]


def row(cases: list[Case]) -> tuple[str, ...]:
    """Return the cells of a row: certified, how many of these wrong, said to differ, trials and builds."""
    certified = [case for case in cases if case.certified]
    tried = [case for case in cases if not case.refused]
    wrong, count = sum(not case.right for case in certified), len(certified)
    low = Beta(wrong, count - wrong + 1).quantile(0.025) if wrong else 0.0  # Clopper and Pearson
    high = Beta(wrong + 1, count - wrong).quantile(0.975) if wrong < count else 1.0
    return (
        f"{100 * count / len(cases):.0f} %",
        f"{wrong} of {count}: {100 * wrong / max(1, count):.1f} % ({100 * low:.1f} to {100 * high:.1f})",
        f"{100 * sum(case.differs for case in tried) / max(1, len(tried)):.0f} %",
        f"{sum(case.trials for case in cases) / len(cases):.0f}",
        f"{sum(case.builds for case in cases) / len(cases):.1f}",
    )


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    launchers = [ROOT / "launcher", *map(Path, sys.argv[2:])]
    print(f"12 patches, one or two culprits, confidence 0.99; {runs} cases a row, intervals at 95 %\n")
    print("| correlation, or change | nvllm | certified | of these wrong | said to differ | trials | builds |")
    print("|---|---|---|---|---|---|---|")
    for title, landscape in CLASSES.items():
        for launcher in launchers[:1] if landscape == BY_FACT else launchers:
            name = "this" if launcher == launchers[0] else "the other"
            cells = (title, name, *row(searched(launcher, landscape, runs)))
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        with Pool() as pool:
            drawn = [(sys.argv[2], number) for number in range(int(sys.argv[3]))]
            print(json.dumps([asdict(case) for case in pool.map(search, drawn, chunksize=2)]))
    else:
        main()
