"""The edges of `nvllm bisect` on the real engine: kills, interrupts, sets that cannot be built, images that are there.

What is built here differs in Python alone, and one served trial is interrupted twice, so that all of it is quick.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from docker import DockerClient

from support.bisect_engine import HARMLESS, REAL, Extra, bisect, bisecting, extend, found, records
from support.engine_world import IMAGE, World, Worlds, alive, dead, until

pytestmark = pytest.mark.engine

ON_TOP = Extra("test-on-top", HARMLESS.file, HARMLESS.added, "# Another one.\n")
"""It needs the lines of the harmless patch around its own, and no series says so."""

COMPILED = Extra("test-compiled", "vllm/spinloop.abi3.so", "", "of a test\n")
"""It makes a file that the source lacks and the wheel has: what is installed would not be what was patched."""

_SECONDS = 60.0
"""An image that differs from one that is there in Python alone is built in less, many times over."""

_SOON = 20.0
"""An interrupted run has ended after so many seconds: long before its probes would."""


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    with bisecting(worlds, docker_client) as made:
        yield made


def program(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "probe"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def running(world: World, *args: str) -> subprocess.Popen[str]:
    """Start `nvllm bisect run` with ARGS. Nobody reads what it prints."""
    return world.start("bisect", "run", *args, output=subprocess.DEVNULL)


def interrupt(process: subprocess.Popen[str]) -> float:
    """Send SIGINT to PROCESS alone, twice as impatient users do, and return how many seconds its end took."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    return time.monotonic() - began


WAITING = """\
echo "$$ $NVLLM_PATCHES $NVLLM_ADDRESS" >> {said}
sleep 300
"""


def test_a_trial_that_was_killed_is_cleared_away_and_begun_again_and_an_interrupt_ends_it(
    world: World, tmp_path: Path, docker_client: DockerClient
) -> None:
    said = tmp_path / "said"
    probe = program(tmp_path, WAITING.format(said=said))
    bisect(world, "start", IMAGE, "--test", str(probe), "--profile", world.profile(), "--repeats", "1")

    def waiting(count: int) -> None:
        until(lambda: said.exists() and len(said.read_text().splitlines()) == count, "the probe runs", 300)

    killed = running(world)
    waiting(1)
    (left,) = world.containers(docker_client)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    orphan = int(said.read_text().split()[0])
    assert alive(orphan)  # a probe knows nothing of the death of its nvllm
    left.reload()
    assert left.status == "running"
    again = running(world)
    waiting(2)
    assert not alive(orphan)  # the next run ends it before it does anything else
    (now,) = world.containers(docker_client)
    assert now.id != left.id
    (_, first, _), (pid, second, _) = (line.split() for line in said.read_text().splitlines())
    assert first == second == ",".join(records(world, "start")[0]["high"])
    assert len(records(world, "build")) == 1
    assert interrupt(again) < _SOON
    until(partial(dead, int(pid)), "the probe has ended", 5)  # it was killed, and a busy host is slow to end it
    assert not world.containers(docker_client)
    assert not records(world, "trial")


COMMENT = """\
echo $$ >> {said}
[ -e {slow} ] && sleep 300
case "$NVLLM_PATCHES" in *test-on-top*) exit 1;; esac
"""


def test_a_set_that_does_not_apply_and_images_that_are_there(
    world: World, tmp_path: Path, docker_client: DockerClient
) -> None:
    extend(world, (HARMLESS, ON_TOP))
    said, slow = tmp_path / "said", tmp_path / "slow"
    probe = program(tmp_path, COMMENT.format(said=said, slow=slow))
    ends = ("--good", ",".join(REAL), "--bad", ",".join((*REAL, HARMLESS.name, ON_TOP.name)))
    start = ("start", IMAGE, "--set", *ends, "--build-only", "--test", str(probe), "--repeats", "1")
    bisect(world, *start)
    result = found(world)
    assert result["culprits"] == [HARMLESS.name, ON_TOP.name]
    assert not result["certified"]  # the one without the other says nothing
    assert [one for one in result["notes"] if "cannot be tested" in one]
    tried = [
        (set(one["chosen"]) - set(REAL), one["outcome"], one["stage"], one["kind"]) for one in records(world, "trial")
    ]
    assert ({ON_TOP.name}, "untestable", "apply", "NV301") in tried
    assert ({HARMLESS.name}, "good", None, "") in tried
    assert ({HARMLESS.name, ON_TOP.name}, "bad", None, "exit 1") in tried
    built = records(world, "build")
    assert len(built) == 3
    assert all(one["seconds"] < _SECONDS for one in built)

    # Without what an image is made of, and without what is known of earlier trials, each set that has an image is tried
    # again. The one that does not apply never had any.
    shutil.rmtree(world.places.store)
    shutil.rmtree(world.places.layers)
    shutil.rmtree(world.places.state / "bisect/trials")
    calls = len(said.read_text().splitlines())
    bisect(world, *start, "--discard")
    assert set(world.nvllm("bisect", "run", "--offline", "--json").codes) == {"NV204"}
    assert len(said.read_text().splitlines()) == 2 * calls
    again = records(world, "build")
    assert [(one["build_hash"], one["image"]) for one in again] == [(one["build_hash"], one["image"]) for one in built]

    # Both ends at the same time, and an interrupt that nobody but nvllm gets.
    shutil.rmtree(world.places.state / "bisect/trials")
    bisect(world, *start, "--discard")
    slow.touch()
    said.unlink()
    process = running(world, "--jobs", "2", "--offline")
    until(lambda: said.exists() and len(said.read_text().split()) == 2, "two probes run")
    assert interrupt(process) < _SOON
    for pid in said.read_text().split():
        until(partial(dead, int(pid)), "the probe has ended", 5)
    assert not records(world, "trial")


def test_a_set_that_does_not_build_is_no_verdict(world: World, tmp_path: Path) -> None:
    extend(world, (COMPILED,))
    probe = program(tmp_path, "exit 1\n")
    ends = ("--good", ",".join(REAL), "--bad", ",".join((*REAL, COMPILED.name)))
    bisect(world, "start", IMAGE, *ends, "--build-only", "--test", str(probe))
    refused = world.nvllm("bisect", "run", "--json")
    assert (refused.codes, refused.refusal["found"]) == (["NV801"], "untestable (build)")
    (tried,) = records(world, "trial")
    assert (tried["outcome"], tried["stage"], tried["kind"]) == ("untestable", "build", "NV208")
    assert not records(world, "build")


@pytest.mark.long
def test_a_set_is_served_to_be_looked_at(world: World, tmp_path: Path, docker_client: DockerClient) -> None:
    """A search may clear its trials away meanwhile: what somebody looks at is no trial."""
    probe = program(tmp_path, "exit 1\n")
    start = ("start", IMAGE, "--profile", world.profile(), "--bad", ",".join(REAL), "--repeats", "1")
    bisect(world, *start, "--build-only", "--test", str(probe))
    looking = world.start("--json", "bisect", "serve", REAL[-1])
    assert looking.stdout is not None
    shown = json.loads("".join([*iter(looking.stdout.readline, "}\n"), "}"]))["result"]
    assert shown["patches"] == [REAL[-1]]
    with urllib.request.urlopen(f"{shown['address']}/v1/models", timeout=60) as answer:
        assert answer.status == 200
    assert world.nvllm("bisect", "run", "--json").codes == ["NV801"]  # every set is bad, also the good end
    (container,) = world.containers(docker_client)
    assert container.name == shown["instance"]
    assert world.nvllm("stop", shown["instance"]).code == 0
    assert looking.wait(60) == 0
    bisect(world, "good", shown["set"])
    assert [one["chosen"] for one in records(world, "trial") if one["by_hand"]] == [[REAL[-1]]]
    assert not world.containers(docker_client)
