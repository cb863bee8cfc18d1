"""The commands of pages for those who work on nvllm: pytest, the scripts and programs of the repository.

A command of pytest has to select a test, which is asked by collecting. A script or module has to be there, with the
options that the page gives it; most of them cannot be run here, because they take long, need a GPU or make a machine.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.documented import PAGES, ROOT

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES if page != "CHANGELOG.md"}

_PYTEST = re.compile(
    r"(?:[A-Z_0-9]+=\S+ )*(?:\.venv/bin/python -m )?pytest (?=\S*[-/])[^`\n]*?(?=  |`|$)", re.MULTILINE
)
_FILE = re.compile(r"(?<![\w/.-])((?:tools|benchmarks|\.ci)/[\w./-]*\w|benchmarks\.gpu(?:\.\w+)?)")
_SCRIPT = re.compile(r"((?:tools|\.ci)/[\w.-]+)((?: --?[\w-]+| [\w~./=-]+)*)")

ELSEWHERE = {
    "pytest --quiet tests",  # in the project of a reader; the tutorial's own test runs it
    # where torch and vLLM are, as in an image; tests/series/test_sent_tests.py runs it
    "TRITON_INTERPRET=1 pytest --confcutdir=tests/series/upstream tests/series/upstream",
}


def pytest_lines() -> list[tuple[str, str]]:
    """Return each page and command of pytest on it."""
    found = [(page, " ".join(one[0].split())) for page, text in TEXTS.items() for one in _PYTEST.finditer(text)]
    return [(page, line) for page, line in found if line not in ELSEWHERE]


def test_the_commands_are_found() -> None:
    assert {page for page, _ in pytest_lines()} >= {"CONTRIBUTING.md", "docs/engines.md", "docs/gb10.md"}


COLLECT = """
import json, sys, pytest
options = ["--collect-only", "-qq", "-p", "no:cacheprovider"]
print(json.dumps([pytest.main([*options, *given]) for given in json.loads(sys.argv[1])]))
"""


@pytest.mark.thorough
def test_every_command_of_pytest_selects_a_test() -> None:
    lines = pytest_lines()
    given = [words[words.index("pytest") + 1 :] for words in (shlex.split(line) for _, line in lines)]
    argv = [sys.executable, "-c", COLLECT, json.dumps(given)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    codes = json.loads(done.stdout.splitlines()[-1])
    assert [line for line, code in zip(lines, codes, strict=True) if code != 0] == [], done.stdout[-2000:]


def test_every_script_and_program_that_a_page_names_is_there() -> None:
    wrong = []
    for page, text in TEXTS.items():
        code = "\n".join(
            [*re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL), *re.findall(r"`([^`\n]+)`", text)]
        )
        for name in _FILE.findall(code):
            path = Path(name if "/" in name else name.replace(".", "/"))
            if not any((ROOT / one).exists() for one in (path, path.with_suffix(".py"))):
                wrong.append(f"{page}: {name}")
    assert wrong == []


def test_every_option_of_a_script_that_a_page_gives_is_one_of_it() -> None:
    wrong = []
    for page, text in TEXTS.items():
        for script, rest in _SCRIPT.findall(text):
            if not (ROOT / script).is_file():
                continue
            source = (ROOT / script).read_text(encoding="utf-8")
            wrong += [f"{page}: {script} {one}" for one in re.findall(r" (--[\w-]+)", rest) if one not in source]
    assert wrong == []
