"""Runs a suite that the CI never runs, and writes what came of it into docs/records.md.

    python tools/records.py SUITE [NAME=VALUE]...  runs the suite, or with variables a part of it; ends as it does
    python tools/records.py --check                exit status 1 if a suite has no row of what is released here

A row names the commit that was run, so the tree has to be clean. The newest row of a suite stands for a release as long
as only pages were changed since.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.host import facts

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/records.md"

SUITES: Mapping[str, str] = {
    "long": "test-long",
    "engines": "test-engines",
    "fleet": "test-fleet",
    "gpu": "test-gpu",
    "matrix": "matrix",
    "fuzz": "fuzz",
}
"""The target of make that runs each suite."""

PAGES = ("docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""What may change after a row was written: nothing of it is run by these suites."""

_COUNTS = r"(?:\d+ (?:passed|failed|skipped|errors?|deselected|warnings?|xfailed|xpassed)(?:, )?)+"
_SUMMARY = re.compile(rf"^=* ?({_COUNTS}) in [\d.]+s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Record:
    """One run of SUITE at COMMIT, with the variables that make was given. Time in seconds.

    Counts are of all runs of pytest in it, None if there was none.
    """

    suite: str
    date: str
    commit: str
    machine: str
    passed: int | None
    failed: int | None
    skipped: int | None
    seconds: int

    @property
    def row(self) -> str:
        counts = ["-" if count is None else f"{count:,}" for count in (self.passed, self.failed, self.skipped)]
        cells = [f"`{self.suite}`", self.date, f"`{self.commit}`", self.machine, *counts, f"{self.seconds:,} s"]
        return f"| {' | '.join(cells)} |\n"


def counted(output: str) -> dict[str, int]:
    """Return how many tests of all runs of pytest in OUTPUT passed, failed and were skipped; empty without a run."""
    counts: dict[str, int] = {}
    for summary in _SUMMARY.findall(output):
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", summary):
            key = "failed" if word == "error" else word
            counts[key] = counts.get(key, 0) + int(number)
    return counts


def rows() -> Iterator[tuple[str, str]]:
    """Yield suite and commit of each row of the page, the oldest first, but for runs that were given arguments."""
    yield from re.findall(r"^\| `(\w+)` \| [\d-]+ \| `([0-9a-f]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def lacking() -> Iterator[str]:
    """Yield each suite without a row of what lies here, and why."""
    newest = dict(rows())
    for suite in SUITES:
        if suite not in newest:
            yield f"{suite}: never recorded"
            continue
        apart = [f":(exclude){page}" for page in PAGES]
        done = _git("diff", "--quiet", newest[suite], "HEAD", "--", ".", *apart)
        if done.returncode != 0:
            yield f"{suite}: recorded at {newest[suite]}, and more than pages was changed since"


def _git(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)


def _machine() -> str:
    """Return what decides how tests run here: platform, processor, how many, and the first GPU."""
    host = facts.probe([])
    return ", ".join([host.cpu.machine, host.cpu.kind, f"{host.cpu.count} CPUs", *(gpu.name for gpu in host.gpus[:1])])


def run(suite: str, arguments: Sequence[str]) -> int:
    """Run SUITE, append its row, and return its exit status."""
    if _git("status", "--porcelain").stdout.strip():
        sys.stderr.write("records: a row names a commit: commit what was changed first\n")
        return 2
    commit, started, output = _git("rev-parse", "--short=12", "HEAD").stdout.strip(), time.time(), []
    argv = ["make", SUITES[suite], *arguments]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            output.append(line)
    counts = counted("".join(output))
    failed = counts.get("failed", 0)
    if process.returncode != 0 and failed == 0:  # it ended before a test did, or has no tests of pytest
        failed = 1
    known = bool(counts)
    made = Record(
        suite=" ".join([suite, *arguments]),
        date=time.strftime("%Y-%m-%d", time.gmtime(started)),
        commit=commit,
        machine=_machine(),
        passed=counts.get("passed", 0) if known else None,
        failed=failed if known or failed else None,
        skipped=counts.get("skipped", 0) if known else None,
        seconds=round(time.time() - started),
    )
    PAGE.write_text(PAGE.read_text(encoding="utf-8") + made.row, encoding="utf-8")
    sys.stderr.write(f"records: {made.row.strip()}\n")
    return process.returncode


def main(argv: Sequence[str]) -> int:
    if argv == ["--check"]:
        problems = list(lacking())
        sys.stderr.write("".join(f"records: {problem}\n" for problem in problems))
        return 1 if problems else 0
    if not argv or argv[0] not in SUITES:
        sys.stderr.write(f"usage: make records SUITE=NAME, one of {', '.join(SUITES)}\n")
        return 2
    return run(argv[0], argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
