"""The journal as a shell script: it is run here, with an nvllm that writes down how it was called."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import click
import pytest

from nvllm.bisect.combinations import set_hash
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.records import Back, BisectStart, JournalEntry, Skip, Tried
from nvllm.bisect.script import script
from nvllm.cli.main import program
from nvllm.trials.trial import BisectProbe
from support.bisect_world import SimulatedBench, all_of, free, start

NVLLM = """#!/bin/sh
echo "nvllm $*" >> {said}
case "$*" in *"$BROKEN") exit 3;; esac
"""
PROBE = """#!/bin/sh
echo "probe $NVLLM_IMAGE $NVLLM_PATCHES" >> {said}
exit 7
"""


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """Put programs where the script finds them; return where they say what they were asked."""
    path = tmp_path / "said"
    for name, text in (("bin/nvllm", NVLLM), ("it's a probe", PROBE)):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(text.format(said=path))
        place.chmod(0o755)
    return path


def run(text: str, said: Path, broken: str = "no such set") -> list[str]:
    env = {"PATH": f"{said.parent}/bin:{os.environ['PATH']}", "BROKEN": broken}
    done = subprocess.run(["sh"], input=text.encode(), env=env, cwd=said.parent, capture_output=True, check=True)
    assert not done.stderr
    return said.read_text().splitlines()


def begun(said: Path, *, build_only: bool = True, regress: str = "") -> BisectStart:
    command = (str(said.parent / "it's a probe"),)
    return replace(start(free(8), "ordered"), probe=BisectProbe(command, "ab" * 32, regress, build_only))


def image(*chosen: str) -> str:
    return f"image-{set_hash(chosen)}"


def test_it_starts_the_search_and_repeats_the_trials(said: Path) -> None:
    log = Log.of(begun(said))
    log.append(Skip(("p01",)))
    broken = frozenset({frozenset({"p01", "p02", "p03", "p04"})})
    drive(log, SimulatedBench(all_of(frozenset({"p06"})), broken))
    log.append(Back(("p01",)))
    log.append(Back(()))
    text = script(log.entries)
    every = ",".join(free(8).order)
    first, skipped, *others = run(text, said, "--patches p01,p02,p03,p04")
    assert first == (
        f"nvllm bisect start cpu --test {said.parent}/it's a probe --find break --bad {every} --good none"
        " --profile tiny-eager --confidence 0.99 --repeats 1 --patience 40 --build-price 1 --build-only"
    )
    assert skipped == "nvllm bisect skip --image cpu p01"
    assert others[:2] == [f"nvllm build cpu --patches {every}", f"probe {image(*free(8).order)} {every}"]
    assert others[2:4] == ["nvllm build cpu --patches none", f"probe {image()} "]
    assert others[-1] == "nvllm bisect back --image cpu p01"
    assert "nvllm build cpu --patches p01,p02,p03,p04" in others
    assert not [one for one in others if one.endswith(" p01,p02,p03,p04") and one.startswith("probe")]
    assert "\n# untestable (build), 0.0 s\n" in text
    assert "\n# found: p06\n" in text
    assert "\n# nvllm bisect back --image cpu none" in text


def test_a_probe_of_a_served_engine_is_shown_and_not_run(said: Path) -> None:
    log = Log.of(begun(said, build_only=False))
    drive(log, SimulatedBench(all_of(frozenset({"p06"}))))
    text = script(log.entries)
    assert not [one for one in run(text, said) if one.startswith("probe")]
    assert f"\n# with the engine's NVLLM_ADDRESS: NVLLM_IMAGE={image()} NVLLM_PATCHES='' " in text


def test_nothing_of_a_journal_becomes_a_command(said: Path) -> None:
    evil = "log=foo\ntouch x; $(touch x) `touch x` '\"\u2028"
    log = Log.of(replace(begun(said, regress=evil), series="v1\ntouch x", host="h\rtouch x\ntouch x"))
    drive(log, SimulatedBench(all_of(frozenset({"p06"}))))
    entries = [
        JournalEntry(one.when, replace(one.record, reason=evil, kind=evil)) if isinstance(one.record, Tried) else one
        for one in log.entries
    ]
    assert "touch x" in " ".join(run(script(entries), said))
    assert not (said.parent / "x").exists()


def test_how_a_search_was_started_is_a_command_line_of_this_nvllm(said: Path) -> None:
    golden = BisectProbe(("builtin:golden", "/an answer"), "ab" * 32)
    of_fix = replace(start(free(8), "set", "fix", flaky=True), probe=golden)
    for one in (begun(said, regress="log=out of\nmemory"), of_fix):
        line = shlex.split(script([JournalEntry(0.0, one)]).split("set -eu\n")[1])
        assert line[:3] == ["nvllm", "bisect", "start"]
        group = program.get_command(program.make_context("nvllm", ["bisect"], resilient_parsing=True), "bisect")
        assert isinstance(group, click.Group)
        command = group.commands["start"]
        given = command.make_context("start", line[3:]).params
        assert (given["regress"], given["find"], given["as_set"]) == (one.probe.regress, one.find, one.mode == "set")
        assert (given["bad"] == "none", given["flaky"]) == (one.find == "fix", one.flaky)
        assert str(given["words"][0] if given["words"] else given["test"]) == one.probe.command[-1]
