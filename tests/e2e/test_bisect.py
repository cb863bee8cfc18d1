"""`nvllm bisect` on the real engine: the patch that repairs, two patches that break together, and a kill."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from engine_world import IMAGE, MODEL, Done, World, Worlds, until
from nvllm import lockdoc, seriesfile, source
from nvllm.lock import LockedPatch
from nvllm.series import Series
from nvllm.store import Store

pytestmark = [pytest.mark.engine, pytest.mark.long]

SERIES = "v0.28.0"
REAL = ("aot-load-guard", "api-key-out-of-compile-key")


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    """A world. What its bisect adds to the engine goes again, and none of it was called the newest build."""

    def tags() -> dict[str, str]:
        return {tag: str(image.id) for image in docker_client.images.list("nvllm") for tag in image.tags}

    made, before, newest = worlds.make(), tags(), f"nvllm:{IMAGE}"
    yield made
    made.end()
    after, built = tags(), records(made, "build")
    for tag in {f"{newest}-{one['build_hash'][:12]}" for one in built} - before.keys():
        docker_client.api.remove_image(tag)
    assert after[newest] not in {one["image"] for one in built} - {before[newest]}


def bisect(world: World, *args: str) -> Done:
    done = world.nvllm("bisect", *args, "--json")
    assert done.code == 0, done
    return done


def found(world: World, *args: str) -> dict[str, Any]:
    """Carry the search on to its end, and return what it found."""
    answer = bisect(world, "run", *args).result["found"]
    assert isinstance(answer, dict)
    return answer


def records(world: World, kind: str) -> list[dict[str, Any]]:
    """Return the records of KIND in the journal."""
    lines = (world.places.state / "bisect" / IMAGE / "journal.jsonl").read_text().splitlines()
    return [one for line in lines if (one := json.loads(line))["record"] == kind]


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


LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"
SERVING = "vllm/entrypoints/openai/completion/serving.py"
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


@dataclass(frozen=True, slots=True)
class Extra:
    """A patch of a test: what it puts before which line of a file."""

    name: str
    file: str
    place: str
    added: str


HARMLESS = Extra("test-harmless", "vllm/v1/engine/detokenizer.py", LICENSE, "# A comment of a test.\n")
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

PROBE = """\
#!{python}
import json, os, sys, urllib.error, urllib.request

asked = {{"model": "{model}", "prompt": "hello world", "max_tokens": 4, "n": 2}}
url = os.environ["NVLLM_ADDRESS"] + "/v1/completions"
request = urllib.request.Request(url, json.dumps(asked).encode(), {{"Content-Type": "application/json"}})
try:
    with urllib.request.urlopen(request, timeout=120) as answer:
        sys.exit(0 if len(json.load(answer)["choices"]) == 2 else 4)
except urllib.error.HTTPError as error:
    print(error.read().decode())
    sys.exit(3)
"""


def extend(world: World, extras: Sequence[Extra]) -> None:
    """Add the patches EXTRAS to the series of WORLD, and to the series that its lock was made from."""
    directory = world.project.series(SERIES)
    path = world.project.lock(IMAGE)
    lock = lockdoc.read(path, path.name)
    archive = Store(world.places.store).path(lock.vllm.source.sha256)
    pristine = source.archive(archive, {extra.file for extra in extras})
    text = (directory / "series.yaml").read_text()
    entries = ""
    for number, extra in enumerate(extras, 1):
        data = pristine.read(extra.file)
        assert data is not None
        old = data.decode()
        assert extra.place in old
        new = old.replace(extra.place, extra.added + extra.place, 1)
        lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{extra.file}", f"b/{extra.file}")
        diff = "".join(lines)
        patch = directory / f"9{number:03}-{extra.name}.patch"
        patch.write_text(diff)
        entries += f"""
  - id: {extra.name}
    status: carried
    file: {patch.name}
    sha256: {hashlib.sha256(diff.encode()).hexdigest()}
    summary: A patch of a test
    upstream: {{state: none}}
    touches: [{extra.file}]
    proved-by: [tests/e2e/test_bisect.py::test_two_patches_that_break_together_are_found]
"""
    (directory / "series.yaml").write_text(text.rstrip("\n") + "\n" + entries)
    series: Series = seriesfile.load(directory, SERIES)
    patches = tuple(LockedPatch(one.id, one.status, one.sha256) for one in series.patches)
    lockdoc.write(path, replace(lock, series=replace(lock.series, patches=patches)))


def test_two_patches_that_break_together_are_found(world: World, tmp_path: Path, docker_client: DockerClient) -> None:
    extend(world, TWO)
    program = tmp_path / "probe"
    program.write_text(PROBE.format(python=sys.executable, model=MODEL))
    program.chmod(0o755)
    bisect(
        world,
        *("start", IMAGE, "--set", "--good", ",".join(REAL), "--bad", "all", "--repeats", "1"),
        *("--test", str(program), "--regress", "exit=3", "--profile", world.profile()),
    )
    result = found(world)
    assert result["culprits"] == ["test-flag", "test-reader"]
    assert result["certified"], result
    tried = records(world, "trial")
    # Two culprits of all that may be left out, both ends, and what the certificate asks beyond that.
    free = len(records(world, "start")[0]["order"]) - len(REAL)
    assert len(tried) <= 2 * math.log2(free) + 3 + 2
    bad = [set(one["chosen"]) - set(REAL) for one in tried if one["outcome"] == "bad"]
    assert {"test-flag", "test-reader"} in bad
    assert all({"test-flag", "test-reader"} <= one for one in bad)
    assert all(one["outcome"] in {"good", "bad"} for one in tried)
    assert not world.containers(docker_client)


@pytest.mark.parametrize("name", ["boots", "golden", "coherent"])
def test_the_tests_that_nvllm_brings(world: World, tmp_path: Path, docker_client: DockerClient, name: str) -> None:
    """Two trials at a time, each with an engine of its own: one culprit beside a patch that does nothing."""
    extend(world, (ONE[name], HARMLESS))
    test, profile = (name,), world.profile()
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
    assert len(records(world, "build")) == 3
    replayed = world.nvllm("bisect", "replay", str(world.places.state / "bisect" / IMAGE / "journal.jsonl"), "--json")
    assert replayed.result["found"] == result
