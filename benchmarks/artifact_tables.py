"""How often a flaky bisect is wrong if failure rates differ between builds.

`python benchmarks/artifact_tables.py [RUNS]` prints a row for each correlation of the trials of one build, with RUNS
cases (default 300) of the classes "builds differ" of `tests/support/bisect_landscapes.py`. A row takes minutes.
"""

from __future__ import annotations

import contextlib
import random
import sys
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("launcher", "tests")]

from nvllm.core.refusal import Refused  # noqa: E402
from support.bisect_landscapes import CORRELATIONS, LANDSCAPES  # noqa: E402
from support.bisect_world import World  # noqa: E402


@dataclass(frozen=True, slots=True)
class Case:
    """What one search came to. DIFFERS: it says that builds differ, or may. REFUSED: an end was refused."""

    trials: int
    builds: int
    certified: bool = False
    right: bool = False
    differs: bool = False
    refused: bool = False


def search(drawn: tuple[float, int]) -> Case:
    """Search the case with the correlation and the number DRAWN."""
    correlation, number = drawn
    name = f"builds differ {correlation:g}"
    case = LANDSCAPES[name](random.Random(f"{name}/1/{number}"))
    world, done = World(case.judge), None
    with contextlib.suppress(Refused):
        done = world.solve(case.problem)
    if done is None:
        return Case(world.trials, world.builds, refused=True)
    spread = done.spread
    differs = spread is not None and (spread.differs or not spread.mixed)
    right = frozenset(done.culprits) == case.cause
    return Case(world.trials, world.builds, certified=done.certified, right=right, differs=differs)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    print(f"12 patches, one or two culprits, confidence 0.99; {runs} cases a row\n")
    print("| correlation | certified | of these wrong | said to differ, of those not refused | trials | builds |")
    print("|---|---|---|---|---|---|")
    with Pool() as pool:
        for correlation in CORRELATIONS:
            cases = pool.map(search, [(correlation, number) for number in range(runs)], chunksize=2)
            certified = [case for case in cases if case.certified]
            tried = [case for case in cases if not case.refused]
            wrong = sum(not case.right for case in certified)
            cells = (
                f"{correlation:g}",
                f"{100 * len(certified) / runs:.0f} %",
                f"{100 * wrong / max(1, len(certified)):.1f} % ({wrong} of {len(certified)})",
                f"{100 * sum(case.differs for case in tried) / max(1, len(tried)):.0f} %",
                f"{sum(case.trials for case in cases) / runs:.0f}",
                f"{sum(case.builds for case in cases) / runs:.1f}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
