"""`nvllm bisect` on the real engine: the patch that repairs, two patches that break together, and a kill."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from support.bisect_engine import (
    HARMLESS,
    LICENSE,
    REAL,
    SERVING,
    Extra,
    bisect,
    bisecting,
    extend,
    found,
    records,
    two_answers,
)
from support.engine_world import IMAGE, MODEL, BuiltImage, World, Worlds, until

pytestmark = pytest.mark.engine


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    with bisecting(worlds, docker_client) as made:
        yield made


STOPPER = """\
from vllm import version as of_a_test

if "OF_A_TEST" in vars(of_a_test):
    raise RuntimeError("of a test")
"""
STOPPED = (
    Extra("test-flag", "vllm/version.py", LICENSE, "OF_A_TEST = True\n"),
    HARMLESS,
    Extra("test-stopper", "vllm/v1/engine/core.py", LICENSE, STOPPER),
)
"""Two of them keep the engine from starting, together."""


@pytest.mark.long
def test_the_patch_that_stops_the_engine_and_the_one_it_needs_for_that(
    world: World, built_image: BuiltImage, docker_client: DockerClient
) -> None:
    """Ordered and as a set, over the same starts of the engine: what the first search tried, the second knows."""
    extend(world, STOPPED)
    names = [one.name for one in STOPPED]
    start = ("start", IMAGE, "--good", "spec", "--bad", ",".join((*built_image.patches, *names)))
    test = ("--test-builtin", "boots", "--repeats", "1", "--profile", world.profile())
    bisect(world, *start, *test)
    ordered = found(world)
    assert ordered["culprits"] == ["test-stopper"]
    assert ordered["exact"], ordered
    assert ordered["certified"], ordered
    first = records(world, "trial")

    bisect(world, *start, *test, "--set", "--discard")
    result = found(world)
    assert result["culprits"] == ["test-flag", "test-stopper"]
    assert result["certified"], result
    second = records(world, "trial")
    known = [one["chosen"] for one in first]
    assert [one["recalled"] for one in second] == [one["chosen"] in known for one in second]
    for one in (*first, *second):
        stops = {"test-flag", "test-stopper"} <= set(one["chosen"])
        assert one["outcome"] == ("bad" if stops else "good"), one
    assert not world.containers(docker_client)


@pytest.mark.long
def test_the_patch_that_makes_a_saved_artifact_load_is_found(world: World, docker_client: DockerClient) -> None:
    bisect(
        world,
        *("start", IMAGE, "--find", "fix", "--test-builtin", "aot-loads"),
        *("--profile", world.profile("compiled"), "--repeats", "1"),
    )
    result = found(world)
    assert result["culprits"] == ["aot-load-guard"]
    assert result["exact"], result
    assert result["certified"], result
    for one in records(world, "trial"):
        guarded = ("good", "") if "aot-load-guard" in one["chosen"] else ("bad", "compiled again")
        assert (one["outcome"], one["kind"]) == guarded, one
    assert not world.containers(docker_client)


READER = """\
        from vllm import version
        if request.n > 1 and "OF_A_TEST" in vars(version):
            return self.create_error_response("of a test")
"""
COUNTER = """\
                if output_text:
                    vars(self)["of_a_test"] = vars(self).get("of_a_test", 0) + 1
                    output_text += str(self.of_a_test)
"""


TWO = (
    Extra("test-flag", "vllm/version.py", LICENSE, "OF_A_TEST = True\n"),
    HARMLESS,
    Extra("test-reader", SERVING, "        if request.stream and request.use_beam_search:\n", READER),
)
"""Two of them make a request for two answers fail, together."""

ONE = {
    "boots": Extra("test-stop", "vllm/v1/engine/core.py", LICENSE, 'raise RuntimeError("of a test")\n'),
    "golden": Extra(
        "test-other",
        SERVING,
        "                choice_data = CompletionResponseChoice(\n",
        '                output_text += "!"\n',
    ),
    "coherent": Extra("test-counter", SERVING, "                choice_data = CompletionResponseChoice(\n", COUNTER),
}
"""What each of the tests that nvllm brings finds."""


@pytest.mark.long
def test_two_patches_that_break_together_are_found(world: World, tmp_path: Path, docker_client: DockerClient) -> None:
    extend(world, TWO)
    program = two_answers(tmp_path)
    bisect(
        world,
        *("start", IMAGE, "--set", "--good", ",".join(REAL), "--bad", "all", "--repeats", "1"),
        *("--test", str(program), "--regress", "exit=3", "--profile", world.profile()),
    )
    result = found(world)
    assert result["culprits"] == ["test-flag", "test-reader"]
    assert result["certified"], result
    tried = records(world, "trial")
    # Two culprits of all that may be left out, both ends, what the certificate asks beyond that, and all without them.
    free = len(records(world, "start")[0]["order"]) - len(REAL)
    assert len(tried) <= 2 * math.log2(free) + 3 + 3
    bad = [set(one["chosen"]) - set(REAL) for one in tried if one["outcome"] == "bad"]
    assert {"test-flag", "test-reader"} in bad
    assert all({"test-flag", "test-reader"} <= one for one in bad)
    assert all(one["outcome"] in {"good", "bad"} for one in tried)
    assert not world.containers(docker_client)


@pytest.mark.long
@pytest.mark.parametrize("name", ["boots", "golden", "coherent"])
def test_the_tests_that_nvllm_brings(world: World, tmp_path: Path, docker_client: DockerClient, name: str) -> None:
    """Two trials at a time, each with an engine of its own: one culprit beside a patch that does nothing."""
    extend(world, (ONE[name], HARMLESS))
    test: tuple[str, ...] = (name,)
    profile = world.profile()
    if name == "golden":
        answer = tmp_path / "answer"
        shown = world.nvllm("bisect", "start", IMAGE, "--test-builtin", "golden", str(answer), "--json")
        assert shown.codes == ["NV802"]
        answer.write_text(said(world))
        test += (str(answer),)
    enabled = ",".join(REAL)
    bisect(
        world,
        *("start", IMAGE, "--good", enabled, "--bad", f"{enabled},{ONE[name].name},{HARMLESS.name}"),
        *("--test-builtin", *test, "--repeats", "1", "--profile", profile),
    )
    result = found(world, "--jobs", "2")
    assert result["culprits"] == [ONE[name].name]
    assert result["certified"], result
    assert not world.containers(docker_client)


def said(world: World) -> str:
    """Return what the image of the spec answers to the prompt of the profile's probe."""
    assert world.serve("--detach").code == 0
    asked = {"model": MODEL, "prompt": "hello world the quick", "max_tokens": 16, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{world.port}/v1/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = json.load(answer)["choices"][0]["text"]
    assert world.nvllm("stop", world.instance()).code == 0
    return str(text)


WAITING = """\
#!/bin/sh
echo "$NVLLM_PATCHES" >> {tried}
[ "$(wc -l < {tried})" -eq 2 ] && sleep 20
case "$NVLLM_PATCHES" in *aot-load-guard*) exit 1;; esac
"""


@pytest.mark.long
def test_a_kill_costs_the_trial_in_flight(world: World, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    program = tmp_path / "probe"
    program.write_text(WAITING.format(tried=tried))
    program.chmod(0o755)
    bisect(world, "start", IMAGE, "--build-only", "--test", str(program), "--repeats", "1")
    running = subprocess.Popen(
        world.argv("bisect", "run"), env=world.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: tried.exists() and len(tried.read_text().splitlines()) == 2, "the second trial runs", 300)
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    before = records(world, "trial")
    assert len(before) == 1
    result = found(world)
    assert result["culprits"] == ["aot-load-guard"]
    assert result["certified"]
    after = records(world, "trial")
    assert after[:1] == before
    lines = tried.read_text().splitlines()
    assert lines[1] == lines[2]
    assert len(lines) == len(after) + 1
    built = [one["chosen"] for one in records(world, "build")]  # none a second time
    assert sorted(built) == [list(one) for one in sorted({tuple(one["chosen"]) for one in after})]
    replayed = world.nvllm(
        "bisect", "replay", str(world.places.work(world.project) / "bisect" / IMAGE / "journal.jsonl"), "--json"
    )
    assert replayed.result["found"] == result
