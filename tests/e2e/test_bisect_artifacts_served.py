"""`nvllm bisect run --artifacts` on the real engine: a patch breaks one of the two compiles of each set, by its hash.

Each trial serves the engine, from a cache that was compiled before. The patched engine takes the hash of what it has
loaded, tells it to who asks, and refuses a request that names it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.bisect.combinations import Combinations
from nvllm.bisect.problem import Problem, Settings
from support import bisect_world
from support.bisect_engine import HARMLESS, SERVING, Extra, bisect, bisecting, extend, records
from support.engine_world import IMAGE, MODEL, BuiltImage, World, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

ACTS = """\
        import hashlib as hashlib_of_a_test
        import json as json_of_a_test

        with open("/run/nvllm/launch.json", "rb") as launched:
            expected = json_of_a_test.load(launched)  # the gate has compared what is mounted with it
        loaded = repr((expected["cache"], expected["models"])).encode()
        artifact = hashlib_of_a_test.sha256(loaded).hexdigest()
        if request.user == "which artifact":
            return self.create_error_response(f"artifact={artifact}")
        if request.user == artifact:
            return self.create_error_response("of a test")
"""
ARTIFACT = Extra("test-artifact", SERVING, "        if request.stream and request.use_beam_search:\n", ACTS)
"""Makes the engine act by the hash of the artifact that it has loaded."""

PROBE = """\
#!{python}
import json, os, pathlib, re, sys, urllib.error, urllib.request

def refused(user):
    asked = {{"model": {model!r}, "prompt": "hello world", "max_tokens": 4, "user": user}}
    url = os.environ["NVLLM_ADDRESS"] + "/v1/completions"
    request = urllib.request.Request(url, json.dumps(asked).encode(), {{"Content-Type": "application/json"}})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return "" if json.load(answer)["choices"] else "no choices"
    except urllib.error.HTTPError as error:
        return error.read().decode()

artifact = re.search("artifact=([0-9a-f]+)", refused("which artifact"))
if artifact is None:
    sys.exit(0)
first, chosen = pathlib.Path({first!r}), os.environ["NVLLM_PATCHES"]
known = json.loads(first.read_text()) if first.exists() else {{}}
first.write_text(json.dumps({{chosen: artifact[1]}} | known))
sys.exit(3 if "of a test" in refused(known.get(chosen, artifact[1])) else 0)
"""
"""Names, to each engine of a set, the artifact that the first one of them had loaded."""

ARTIFACTS = 2
MINUTES = 8


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    with bisecting(worlds, docker_client) as made:
        yield made


def simulated(names: tuple[str, ...]) -> bisect_world.World:
    """Return the same search of NAMES without an engine, once it is over: of each set, the first artifact is bad."""
    world = bisect_world.World(bisect_world.one_bad_artifact(ARTIFACT.name))
    found = world.solve(
        Problem(Combinations(names, {}, {}), frozenset(), frozenset(names), settings=Settings(flaky=True))
    )
    assert found.stopped == "this differs from build to build"
    return world


def test_an_artifact_is_called_to_blame(
    world: World, built_image: BuiltImage, tmp_path: Path, docker_client: DockerClient
) -> None:
    extras = (ARTIFACT, HARMLESS)
    names = tuple(one.name for one in extras)
    expected = simulated(names)
    extend(world, extras)
    probe = tmp_path / "probe"
    probe.write_text(PROBE.format(python=sys.executable, first=str(tmp_path / "first.json"), model=MODEL))
    probe.chmod(0o755)
    profile = world.profile("blessed")
    ends = ("--good", "spec", "--bad", ",".join((*built_image.patches, *names)))
    started = world.nvllm(
        *("bisect", "start", IMAGE, *ends, "--flaky", "--test", str(probe)), "--regress", "exit=3", "--profile", profile
    )
    assert "`nvllm bisect run --artifacts N` tells N compiles of a set apart" in started.out
    answer = bisect(world, "run", "--artifacts", str(ARTIFACTS), "--budget", str(MINUTES)).result
    while not answer.get("found"):  # its artifacts are there for the next run
        answer = bisect(world, "run", "--artifacts", str(ARTIFACTS), "--budget", str(MINUTES)).result

    found, trials = answer["found"], records(world, "trial")
    assert (found["stopped"], found["certified"]) == ("this differs from build to build", False)
    assert (found["builds"]["differ"], found["builds"]["artifacts"]) == (True, ARTIFACTS * found["builds"]["builds"])
    assert len(trials) == expected.trials
    outcomes = defaultdict[str, set[str]](set)
    for one in trials:
        outcomes[one["artifact"]].add(one["outcome"])
    assert {len(each) for each in outcomes.values()} == {1}  # none of them is both good and bad
    (bad_end,) = [one for one in answer["sets"] if set(names) <= {*one["patches"]}]
    bad, good = sorted(bad_end["artifacts"], key=lambda one: -one["bad"])
    assert (bad["good"], good["bad"]) == (0, 0)

    report = world.nvllm("bisect", "report").out
    assert "This differs from build to build: an artifact is to blame, not a patch alone." in report
    assert f"nvllm ablate {IMAGE} --profile {profile} --artifacts 5" in report
    assert f"{bad['tree'][:12]} bad {bad['bad']} of {bad['bad']}" in report
    kept = world.places.work(world.project) / "bisect" / IMAGE / "artifacts"
    assert {path.name for path in kept.glob("*/*") if path.is_dir()} - {"bootstrap"} == {*outcomes}
    assert not world.containers(docker_client)
