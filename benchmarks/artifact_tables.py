"""How often a flaky bisect is wrong if failure rates differ between builds or change with time, or if a second cause
shows more rarely, and what it costs.

`python benchmarks/artifact_tables.py search NAME FIRST LAST FILE [ROW...]` searches the cases FIRST to LAST - 1 of each
row, all rows if none is given, on all processors, and writes what each came to as a line of JSON. NAME says which nvllm
searched: the one in PYTHONPATH, or else this one. `... tables FILE...` prints the tables of all cases in FILES. The
modules that it needs import one package, rfc8785, besides Python. `make bench-bisect` does both.

The cases are those of `tests/support/bisect_landscapes.py`. Nothing was tuned on them: their seed is used nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import Pool
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "launcher"), str(ROOT / "tests")]

from nvllm.bisect.answer import Done  # noqa: E402
from nvllm.bisect.posterior import Beta  # noqa: E402
from nvllm.bisect.problem import Settings  # noqa: E402
from nvllm.bisect.report import conclusion  # noqa: E402
from nvllm.core.refusal import Refused  # noqa: E402
from nvllm.trials.trial import Trial  # noqa: E402
from support import bisect_landscapes as landscapes  # noqa: E402
from support.bisect_landscapes import APART, CHANGES, CORRELATIONS, LANDSCAPES, SEVERAL, WEAKER  # noqa: E402
from support.bisect_world import World, start  # noqa: E402

DOUBT = 0.2
"""The probability of builds that differ above which the report says that they may."""

SEED = os.environ.get("SEED", "held out 2")
"""Another seed is for those who tune the search."""

ALL = ", --all"
"""The end of the name of a row that searches for further causes."""

ONE_CAUSE = {f"{value:g}": f"builds differ {value:g}" for value in CORRELATIONS} | {value: value for value in CHANGES}
if "same_bytes" in {field.name for field in fields(Settings)}:  # earlier versions know of no builds that cannot differ
    ONE_CAUSE = {"0, by fact": "builds cannot differ"} | ONE_CAUSE
if "artifact" in {field.name for field in fields(Trial)}:  # versions that know of builds alone have none
    ONE_CAUSE |= {f"{value:g}, {SEVERAL} artifacts": f"artifacts differ {value:g}" for value in APART}
    ONE_CAUSE |= {f"{value:g}, {SEVERAL} artifacts alike": f"sets differ {value:g}" for value in APART}
TWO_CAUSES = {f"{value:g}{end}": f"weaker cause {value:g}" for value in WEAKER for end in ("", ALL)}
ROWS = {**ONE_CAUSE, **{f"second {name}": landscape for name, landscape in TWO_CAUSES.items()}}
"""The landscape of each row."""


@dataclass(frozen=True, slots=True)
class Case:
    """What the search of the case NUMBER of ROW came to, by the nvllm of the name NVLLM.

    RIGHT: the answer, or the first answer, is a cause and nothing else. DIFFERS: it says that builds differ, or may.
    REFUSED: an end was refused. EVERY: all causes are answers. UNTRUE: it says that everything without its answers is
    not broken, which has another cause.
    """

    nvllm: str
    row: str
    number: int
    trials: int
    builds: int
    certified: bool = False
    right: bool = False
    differs: bool = False
    refused: bool = False
    every: bool = False
    untrue: bool = False


def search(drawn: tuple[str, str, int]) -> Case:
    """Search the case of the nvllm, the row and the number DRAWN."""
    nvllm, row, number = drawn
    case = LANDSCAPES[ROWS[row]](random.Random(f"{ROWS[row]}/{SEED}/{number}"))
    world, done = World(case.judge), None
    with contextlib.suppress(Refused):
        done = world.solve(replace(case.problem, further=row.endswith(ALL)))
    if done is None:
        return Case(nvllm, row, number, world.trials, world.builds, refused=True)
    known = "spread" in {field.name for field in fields(done)}  # versions that pool the trials of all builds have none
    spread = done.spread if known else None
    causes = {cause for cause in (case.cause, case.other) if cause}
    answers = [frozenset(answer.culprits) for answer in (done, *done.further)]
    return Case(
        nvllm,
        row,
        number,
        world.trials,
        world.builds,
        certified=done.certified,
        right=answers[0] in causes,
        differs=spread is not None and (spread.differs or spread.chance > DOUBT or not spread.mixed),
        every=causes <= set(answers),
        untrue=_untrue(case, done, frozenset().union(*answers)),
    )


def _untrue(case: landscapes.Case, done: Done, named: frozenset[str]) -> bool:
    """Return whether DONE says that everything without the patches NAMED is not broken, and it is."""
    asked = case.problem
    text = conclusion(start(asked.combinations, asked.mode, flaky=True), done)
    return "is not broken" in text and case.fails(asked.combinations.without(asked.high, named))


def wrong_of(cases: Sequence[Case]) -> str:
    """Return how many of CASES are not right, with the exact interval at 95 % (Clopper and Pearson)."""
    wrong, count = sum(not case.right for case in cases), len(cases)
    low = Beta(wrong, count - wrong + 1).quantile(0.025) if wrong else 0.0
    high = Beta(wrong + 1, count - wrong).quantile(0.975) if wrong < count else 1.0
    return f"{wrong} of {count}: {100 * wrong / max(1, count):.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def cells(cases: Sequence[Case], *, causes: int) -> tuple[str, ...]:
    """Return the cells of a row of a table about one cause or two."""
    certified = [case for case in cases if case.certified]
    tried = [case for case in cases if not case.refused]
    share = {
        name: f"{100 * sum(flags) / max(1, len(tried)):.0f} %"
        for name, flags in (
            ("differs", [case.differs for case in tried]),
            ("every", [case.every for case in tried]),
            ("untrue", [case.untrue for case in tried]),
        )
    }
    shares = (share["differs"],) if causes == 1 else (share["untrue"], share["every"])
    return (
        str(len(cases)),
        f"{100 * len(certified) / len(cases):.0f} %",
        wrong_of(certified),
        *shares,
        f"{sum(case.trials for case in cases) / len(cases):.0f}",
        f"{sum(case.builds for case in cases) / len(cases):.1f}",
    )


def table(cases: Iterable[Case], rows: Sequence[str], header: Sequence[str], causes: int) -> None:
    """Print the table of those of CASES that belong to ROWS, with a column for each of HEADER."""
    by: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by.setdefault((case.row, case.nvllm), []).append(case)
    print(f"\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row, nvllm in sorted((pair for pair in by if pair[0] in rows), key=lambda pair: (rows.index(pair[0]), pair[1])):
        print(f"| {' | '.join((row, nvllm, *cells(by[row, nvllm], causes=causes)))} |")


def tables(paths: Sequence[str]) -> None:
    """Print the tables of all cases in the files PATHS; a case that is in several counts once."""
    read = [Case(**values) for path in paths for values in map(json.loads, Path(path).read_text().splitlines())]
    cases = list({(case.nvllm, case.row, case.number): case for case in read}.values())
    print("12 patches, confidence 0.99, intervals at 95 %")
    many, costs = ("cases", "certified", "of these wrong"), ("trials", "builds")
    table(cases, [*ONE_CAUSE], ("correlation, or change", "nvllm", *many, "said to differ", *costs), 1)
    two = ("untruly called not broken", "both found")
    table(cases, [f"second {name}" for name in TWO_CAUSES], ("second cause", "nvllm", *many, *two, *costs), 2)


def main(words: Sequence[str]) -> None:
    if words[0] == "tables":
        tables(words[1:])
        return
    nvllm, first, last, path = words[1:5]
    drawn = [(nvllm, row, number) for number in range(int(first), int(last)) for row in words[5:] or ROWS]
    with Pool() as pool, Path(path).open("w") as written:
        for case in pool.imap_unordered(search, drawn):
            print(json.dumps(asdict(case)), file=written, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
