"""The results of campaigns: a JSON file for each engine in `.torture`, and the tables of docs/torture.md from them."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

from torture.campaign import Result

BEGIN, END = "<!-- written by `make torture` -->", "<!-- end -->"
COLUMNS = (
    "engine",
    "requests",
    "2xx",
    "4xx",
    "5xx",
    "hung up",
    "connections",
    "engine ended",
    "neighbour, s",
    "time, s",
)


def keep(directory: Path, result: Result) -> None:
    """Write RESULT below DIRECTORY."""
    directory.mkdir(exist_ok=True)
    (directory / f"{result.engine}.json").write_text(json.dumps({**vars(result), "day": time.strftime("%Y-%m-%d")}))


def tables(directory: Path) -> str:
    """Return the tables of the results below DIRECTORY, as Markdown."""
    rows: list[str] = []
    findings: dict[str, tuple[list[str], str]] = {}
    for path in sorted(directory.glob("*.json"), key=lambda path: ("eager", "compiled", "blessed").index(path.stem)):
        document = json.loads(path.read_text())
        day = document.pop("day")
        document["statuses"] = Counter({int(status): count for status, count in document["statuses"].items()})
        result = Result(**document)
        figures = (result.requests, result.of(200), result.of(400), result.of(500), result.statuses[0])
        more = (result.connections, result.ended, f"{result.slowest:.1f}", f"{result.seconds:.0f}")
        rows.append(f"| {result.engine}, {day} | {' | '.join(map(str, (*figures, *more)))} |")
        for kind, request in result.findings.items():
            findings.setdefault(kind, ([], request))[0].append(result.engine)
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    wrong = "".join(
        f"| {', '.join(engines)} | {_cell(kind)} | `{_cell(request)}` |\n"
        for kind, (engines, request) in findings.items()
    )
    under = (
        f"| engine | what was wrong | smallest request |\n|---|---|---|\n{wrong}" if wrong else "Nothing was wrong.\n"
    )
    return f"{head}{chr(10).join(rows)}\n\n{under}"


def write(page: Path, directory: Path) -> None:
    """Put the tables of the results below DIRECTORY into PAGE."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{tables(directory)}\n{END}{rest.partition(END)[2]}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'").replace("\n", " ")[:400]
