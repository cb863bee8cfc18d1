"""`nvllm bisect` where builds differ: a patch that breaks each build as often as the hash of that build says.

Every set is really built, and each trial runs vLLM's patched code in a container of its image. The probe needs no
server (`--build-only`): with a start of the engine for each of its hundred trials, the search would take an hour.
"""

from __future__ import annotations

import hashlib
import inspect
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.bisect.combinations import Combinations, PatchSet
from nvllm.bisect.problem import Problem, Settings
from nvllm.trials.trial import Trial
from support import bisect_world
from support.bisect_engine import HARMLESS, LICENSE, Extra, bisect, bisecting, extend, found, records
from support.engine_world import IMAGE, BuiltImage, World, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

COMMENT = "# A comment of a test.\n"
OTHERS = (
    HARMLESS,
    Extra("test-later", "vllm/entrypoints/openai/completion/api_router.py", LICENSE, COMMENT),
    Extra("test-last", "vllm/v1/engine/output_processor.py", LICENSE, COMMENT),
)


def fails(holds: Sequence[bool], number: int) -> bool:
    """Return whether trial NUMBER of a build fails that HOLDS each of the other patches or not.

    With this salt, 19, the build with all patches fails in 27 % of its trials, and others seldom or nearly always.
    """
    salt = 19
    digest = hashlib.sha256(repr((salt, list(holds))).encode()).digest()
    return random.Random(f"{digest.hex()}/{number}").random() < digest[0] / 256


ACTS = f"import hashlib\nimport random\nfrom collections.abc import Sequence\n\n\n{inspect.getsource(fails)}\n\n"
ARTIFACT = Extra("test-artifact", "vllm/version.py", LICENSE, ACTS)
"""Adds to vLLM the very function that the test simulates with."""

PROBE = """\
#!{python}
import os, pathlib, sys
import docker

image = os.environ["NVLLM_IMAGE"]
count = pathlib.Path({directory!r}, image.replace(":", "-"))
number = len(count.read_bytes()) if count.exists() else 0
with count.open("ab") as file:
    file.write(b".")
code = '''
import importlib.util, pathlib, runpy, sys
root = pathlib.Path(importlib.util.find_spec("vllm").origin).parent.parent
acts = runpy.run_path(str(root / "vllm/version.py")).get("fails")
holds = [b"{comment}" in (root / name).read_bytes() for name in {files!r}]
sys.exit(3 if acts is not None and acts(holds, %d) else 0)
''' % number
engine = docker.from_env()
container = engine.containers.run(image, ["-c", code], entrypoint=["python3"], detach=True, network_mode="none")
try:
    status = container.wait()["StatusCode"]
    print(container.logs().decode())
finally:
    container.remove(force=True)
sys.exit(status if status in (0, 3) else 125)
"""


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    with bisecting(worlds, docker_client) as made:
        yield made


def judged(tried: Counter[PatchSet], chosen: PatchSet) -> Trial:
    """Return how the next trial of CHOSEN ends, after those that were TRIED."""
    number = tried[chosen]
    tried[chosen] += 1
    acts = ARTIFACT.name in chosen and fails([one.name in chosen for one in OTHERS], number)
    return bisect_world.BAD if acts else bisect_world.GOOD


def test_an_effect_of_the_build_is_called_one(
    world: World, built_image: BuiltImage, tmp_path: Path, docker_client: DockerClient
) -> None:
    extras = (ARTIFACT, *OTHERS)
    names = tuple(one.name for one in extras)
    tried = Counter[PatchSet]()
    asked = Problem(Combinations(names, {}, {}), frozenset(), frozenset(names), settings=Settings(flaky=True))
    simulated = bisect_world.World(lambda chosen: judged(tried, chosen))
    expected = simulated.solve(asked)
    assert expected.spread is not None
    assert (expected.certified, expected.spread.differs, expected.culprits) == (False, True, (ARTIFACT.name,))

    extend(world, extras)
    probe = tmp_path / "probe"
    files = [one.file for one in OTHERS]
    comment = COMMENT.strip()
    probe.write_text(PROBE.format(python=sys.executable, directory=str(tmp_path), files=files, comment=comment))
    probe.chmod(0o755)
    ends = ("--good", "spec", "--bad", ",".join((*built_image.patches, *names)))
    bisect(world, "start", IMAGE, *ends, "--build-only", "--flaky", "--test", str(probe), "--regress", "exit=3")
    result = found(world)
    assert (result["culprits"], result["certified"]) == ([ARTIFACT.name], False)
    assert result["builds"]["differ"]
    report = world.nvllm("bisect", "report").out
    assert "This differs from build to build: an artifact is to blame, not a patch alone." in report
    assert f"nvllm ablate {IMAGE}" in report
    assert len(records(world, "trial")) == simulated.trials
    assert not world.containers(docker_client)
