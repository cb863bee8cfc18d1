"""docs/bisect-sessions.md: its commands are run here on a copy of the project, and print what the page says.

Trials are simulated; everything else is real. `PYTHONPATH=launcher:tests python tests/unit/test_bisect_sessions.py`
writes the page's output anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bisect.combinations import PatchSet
from nvllm.cli.main import main
from nvllm.core.paths import Project
from nvllm.engine import engine
from nvllm.trials.trial import Built, Trial
from support.bisect_world import Judge, SimulatedBench

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/bisect-sessions.md"
SESSION = re.compile(r"<!-- session: (\S+) -->\n```text\n(.*?)```\n", re.DOTALL)
DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")
HOST_CLASS = re.compile(r"\b[cg]pu-\w+-[0-9a-f]{12}\b")


def breaking(*causes: str) -> Judge:
    """Return the judge of a failure that shows in each set with all the patches of one of CAUSES."""
    wanted = [frozenset(one.split(",")) for one in causes]

    def judge(chosen: PatchSet) -> Trial:
        bad = any(one <= chosen for one in wanted)
        return Trial("bad", "exit 1", said="wrong answer: 5") if bad else Trial("good", said="right answer: 4")

    return judge


def once(broken: Trial, times: int, then: Judge) -> Judge:
    """Return THEN, but for the first TIMES trials of sets with the cause and more: these are BROKEN."""
    left = [broken] * times

    def judge(chosen: PatchSet) -> Trial:
        return left.pop() if len(chosen) == 1 and left else then(chosen)

    return judge


DIED = Trial("untestable", "NV703", "boot", said="the engine died: out of memory")
JUDGES: Mapping[str, Callable[[], Judge]] = {
    "first": lambda: breaking("inspect-in-process"),
    "by-hand": lambda: breaking("inspect-in-process"),
    "arguments": lambda: breaking("inspect-in-process"),
    "retry": lambda: once(DIED, 3, breaking("inspect-in-process")),
    "corrected": lambda: breaking("inspect-in-process"),
    "required": lambda: breaking("mamba-block-ids"),
    "two-causes": lambda: breaking("inspect-in-process", "aot-load-guard"),
    "elsewhere": lambda: breaking("inspect-in-process"),
    "refused": lambda: breaking("inspect-in-process"),
}


class Bench(SimulatedBench):
    """A build takes 40 seconds, and a trial 75."""

    def build(self, chosen: tuple[str, ...]) -> Built | Trial:
        made = super().build(chosen)
        return replace(made, seconds=40.0)

    def trial(self, built: Built) -> Trial:
        return replace(super().trial(built), seconds=75.0)


@contextlib.contextmanager
def world(judge: Judge) -> Iterator[Path]:
    """Stand in a copy of the project, with a probe, a home of its own and no engine; trials end as JUDGE says."""
    bench = Bench(judge)
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        top = Path(made).resolve()
        for name in ("images", "manifests", "patches"):
            shutil.copytree(ROOT / name, top / "project" / name)
        patch.chdir(top / "project")
        for name in [one for one in os.environ if one.startswith(("NVLLM_", "XDG_"))]:
            patch.delenv(name)
        patch.setenv("HOME", str(top))
        patch.setenv("COLUMNS", "110")
        patch.setenv("DOCKER_HOST", f"unix://{top}/no-engine")
        patch.setattr(engine, "require", lambda: None)
        patch.setattr("nvllm.trials.bench.EngineBench", lambda *_: bench)
        probe = Path("probe.sh")
        probe.write_text("#!/bin/sh\nexit 0\n")
        probe.chmod(0o755)
        yield top


def typed(line: str, top: Path) -> str:
    """Return what LINE writes, on a terminal's both streams."""
    said = io.StringIO()
    if line.startswith("nvllm "):
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(shlex.split(line)[1:])
    else:
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
        said.write(done.stdout + done.stderr)
    text = "".join(f"{one.rstrip()}\n" for one in said.getvalue().splitlines())
    text = HOST_CLASS.sub("cpu-x86_64-149425e4b2f6", text).replace(Project(top / "project").id, "5f2d0c1e9ab34768")
    return DATE.sub("2026-11-22 14:00", text.replace(str(top / "project"), "~/project").replace(str(top), "~"))


def played(name: str, block: str) -> str:
    """Return BLOCK, the session NAME, with what its commands print."""
    with world(JUDGES[name]()) as top:
        lines = [one[2:] for one in block.splitlines() if one.startswith("$ ")]
        return "".join(f"$ {line}\n{typed(line, top)}" for line in lines)


SESSIONS = SESSION.findall(PAGE.read_text(encoding="utf-8"))


def test_every_session_is_run() -> None:
    assert [name for name, _ in SESSIONS] == list(JUDGES)
    assert PAGE.read_text(encoding="utf-8").count("```text") == len(SESSIONS)


@pytest.mark.parametrize(("name", "block"), SESSIONS)
def test_a_session_prints_what_the_page_says(name: str, block: str) -> None:
    assert played(name, block) == block


def test_another_output_is_noticed() -> None:
    name, block = SESSIONS[0]
    assert played(name, block.replace("inspect-in-process breaks", "switches breaks")) == block


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(SESSION.sub(lambda one: one[0].replace(one[2], played(one[1], one[2])), text), encoding="utf-8")
