"""docs/records.md: what `make records` writes, how it counts, and what `tools/release-check.sh` asks of it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from support.documented import PAGES

ROOT = Path(__file__).parents[2]
HEADER = "| suite | date | commit | machine | passed | failed | skipped | time |\n|---|---|---|---|---|---|---|---|\n"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/records.py over a repository of its own, whose one target of make ends as a file says."""
    spec = importlib.util.spec_from_file_location("tools_records", ROOT / "tools/records.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tools_records", made)  # where a dataclass looks its annotations up
    spec.loader.exec_module(made)
    monkeypatch.setattr(made, "ROOT", tmp_path)
    monkeypatch.setattr(made, "PAGE", tmp_path / "docs/records.md")
    monkeypatch.setattr(made, "SUITES", {"long": "test-long"})
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/records.md").write_text(HEADER)
    (tmp_path / "code").write_text("1")
    (tmp_path / "Makefile").write_text("test-long:\n\t@cat said; exit `cat status`\n")
    git = _git(tmp_path)
    git("init", "-q")
    return made


def _git(directory: Path) -> Callable[..., None]:
    names = ["-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false"]

    def git(*argv: str) -> None:
        subprocess.run(["git", *names, *argv], cwd=directory, check=True, capture_output=True)

    return git


def ends(tool: ModuleType, said: str, status: int) -> None:
    """Have the suite of TOOL print SAID and end with STATUS, and commit that."""
    (tool.ROOT / "said").write_text(said)
    (tool.ROOT / "status").write_text(f"{status}\n")
    _git(tool.ROOT)("add", "-A")
    _git(tool.ROOT)("commit", "-q", "-m", "x")


@pytest.mark.parametrize(
    ("said", "status", "cells"),
    [
        ("3 passed in 1.20s\n", 0, "3 | 0 | 0"),
        ("== 3 passed, 2 skipped in 1.20s ==\n5 passed, 1 deselected in 9.0s (0:00:09)\n", 0, "8 | 0 | 2"),
        ("1 failed, 1,000 passed\n== 1 failed, 1000 passed, 2 warnings, 1 error in 1.2s ==\n", 2, "1,000 | 2 | 0"),
        ("there is no engine\n", 2, "- | 1 | -"),
        ("fuzzed\n", 0, "- | - | -"),
    ],
)
def test_a_run_writes_its_row(tool: ModuleType, said: str, status: int, cells: str) -> None:
    ends(tool, said, status)
    assert tool.main(["long"]) == status
    (row,) = tool.PAGE.read_text().removeprefix(HEADER).splitlines()
    assert re.fullmatch(
        rf"\| `long` \| \d{{4}}-\d\d-\d\d \| `[0-9a-f]{{12}}` \| .+ CPUs.* \| {re.escape(cells)} \| \d+ s \|", row
    )


def test_a_tree_that_is_not_clean_has_no_row(tool: ModuleType) -> None:
    ends(tool, "3 passed in 1s\n", 0)
    (tool.ROOT / "code").write_text("2")
    assert tool.main(["long"]) == 2
    assert tool.PAGE.read_text() == HEADER


def test_a_release_needs_a_row_that_is_not_older_than_what_is_released(tool: ModuleType) -> None:
    ends(tool, "3 passed in 1s\n", 0)
    assert tool.main(["--check"]) == 1
    tool.main(["long", "SOME=1"])  # a part is not the suite
    _git(tool.ROOT)("commit", "-q", "-a", "-m", "records")
    assert tool.main(["--check"]) == 1
    tool.main(["long"])
    assert tool.main(["--check"]) == 0
    _git(tool.ROOT)("commit", "-q", "-a", "-m", "the row itself")
    assert tool.main(["--check"]) == 0
    (tool.ROOT / "code").write_text("2")
    _git(tool.ROOT)("commit", "-q", "-a", "-m", "code")
    assert tool.main(["--check"]) == 1


def test_the_suites_of_the_page_are_those_of_the_tool() -> None:
    page = (ROOT / "docs/records.md").read_text(encoding="utf-8")
    source = (ROOT / "tools/records.py").read_text(encoding="utf-8")
    table = re.findall(r'^    "(\w+)": "([\w-]+)",$', source, re.MULTILINE)
    assert re.findall(r"^\| `(\w+)` \|", page.partition("Counts are")[0], re.MULTILINE) == [name for name, _ in table]
    rules = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {target for _, target in table} <= {*rules}


ABOUT_SUITES = {"docs/records.md", "docs/releasing.md", "CONTRIBUTING.md", "CHANGELOG.md"}
"""Pages that say how a suite is run, and claim nothing of what it showed."""


def test_a_page_says_of_a_suite_without_a_row_that_it_has_none() -> None:
    source = (ROOT / "tools/records.py").read_text(encoding="utf-8")
    records = (ROOT / "docs/records.md").read_text(encoding="utf-8")
    recorded = {*re.findall(r"^\| `(\w+)` \| [\d-]+ \|", records, re.MULTILINE)}
    targets = dict(re.findall(r'^    "(\w+)": "([\w-]+)",$', source, re.MULTILINE))
    wrong = []
    for page in PAGES:
        if page in ABOUT_SUITES:
            continue
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        named = {suite for suite, target in targets.items() if re.search(rf"make {target}\b", text)}
        if bool(named - recorded) != ("no recorded run" in text):
            wrong.append(f"{page}: {', '.join(sorted(named - recorded)) or 'each of its suites has a row'}")
    assert wrong == []
