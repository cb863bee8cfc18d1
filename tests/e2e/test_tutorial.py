"""docs/tutorial.md, walked: every command of the page is run, in its order, in one shell, in a HOME of its own.

A fenced block after ``<!-- run: PART -->`` is run; ``exit=N`` says with which status its last command ends, and every
other command has to succeed. The ``text`` block after it is what the block has to print: ``...`` stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
_BLOCK = re.compile(
    r"^<!-- run: (?P<part>\w+)(?: exit=(?P<status>\d+))? -->\n"
    r"```sh\n(?P<text>.*?)^```\n(?:```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """Commands of the page, the status of the last one, and what they show."""

    part: str
    text: str
    status: int
    shown: str


def blocks() -> list[Block]:
    return [
        Block(found["part"], found["text"], int(found["status"] or 0), found["shown"] or "...")
        for found in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))
    ]


@dataclass
class Walk:
    """A walk in HOME. The shell's directory and variables are kept in a file between two blocks."""

    home: Path
    seconds: dict[str, float] = field(default_factory=dict)
    """What each block took, by its first line."""

    def run(self, block: Block) -> str:
        """Run BLOCK where the one before it ended, and return what it printed."""
        state = self.home / ".walk"
        keep = f"keep() {{ {{ declare -p PATH; printf 'cd %q\\n' \"$PWD\"; }} > {shlex.quote(str(state))}; }}"
        begin = f". {shlex.quote(str(state))}" if state.exists() else ""
        script = f"{keep}\n{begin}\nset -eu\ntrap keep EXIT\n{block.text}"
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NVLLM_", "XDG_", "PYTHON"))},
            "HOME": str(self.home),
            # What is downloaded and built is addressed by its bytes, and may come from the walks before.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == block.status, f"{block.text}\n{done.stdout}"
        return done.stdout

    def check(self, block: Block) -> None:
        began = time.monotonic()
        printed = self.run(block)
        self.seconds[block.text.partition("\n")[0]] = time.monotonic() - began
        pattern = re.escape(block.shown.strip()).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"{block.shown}\n{printed}"


def containers() -> list[str]:
    """Return the containers of the page's image, trials of a bisect included."""
    listed = ["docker", "ps", "--all", "--filter", "name=^nvllm-mine-", "--format", "{{.Names}}"]
    return subprocess.run(listed, capture_output=True, check=True, text=True).stdout.split()


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """The walk as far as the lock: installed from a checkout, and with the network, but without an engine."""
    made = Walk(tmp_path_factory.mktemp("walk") / "a home")
    made.home.mkdir()
    for block in blocks():
        if block.part == "start":
            made.check(block)
    return made


@pytest.mark.long
def test_as_far_as_the_lock(walk: Walk) -> None:
    project = walk.home / "work/mine"
    assert (project / "manifests/mine.lock.json").is_file()
    assert (project / "tests/test_mine.py").is_file()


@pytest.mark.long
@pytest.mark.engine
def test_all_of_it(walk: Walk) -> None:
    try:
        for block in blocks():
            if block.part != "start":
                walk.check(block)
        assert containers() == []
        sys.stdout.write("".join(f"{seconds:6.0f} s  {line}\n" for line, seconds in walk.seconds.items()))
    finally:
        for name in containers():
            subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
