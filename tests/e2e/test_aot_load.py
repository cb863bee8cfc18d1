"""The patches on the real engine: the AOT artifact is loaded, and the API key is in no compile key.

A launch plan has no writable mount for a cache, so the image is run here as the profile's plan says, but with
a cache directory of the test that outlives the container.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.core import plan as plans
from nvllm.core.plan import LaunchPlan
from nvllm.engine import engine
from nvllm.trials import aot_load
from nvllm.trials.aot_load import FAILED, LOADED, SAVED
from support.engine_world import IMAGE, BuiltImage, World, Worlds

pytestmark = pytest.mark.engine

KEY = "sk-a-key-that-no-file-may-hold"


@pytest.fixture(scope="module")
def world(session_worlds: Worlds) -> World:
    return session_worlds.make()


@pytest.fixture(scope="module")
def plan(world: World) -> LaunchPlan:
    """The plan of the compiled profile."""
    return plans.decode(world.serve("--dry-run", profile="compiled").result)


@pytest.fixture(scope="module")
def stock_image(world: World, docker_client: DockerClient, built_image: BuiltImage) -> Iterator[str]:
    """The image without any patch but the one without which its model starts on no processor with AMX."""
    before = {tag for image in docker_client.images.list("nvllm") for tag in image.tags}
    tag = str(world.nvllm("build", IMAGE, "--patches", "conv-weight-layout", "--json").result["tag"])
    docker_client.api.tag(built_image.id, "nvllm", IMAGE)
    yield tag
    if tag not in before:
        docker_client.api.remove_image(tag)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    directory = tmp_path / "cache"
    directory.mkdir()
    return directory


def start(image: str, plan: LaunchPlan, cache: Path) -> str:
    """Start the engine of PLAN from IMAGE on the CACHE, wait until it is ready, end it, and return its log."""
    return aot_load.start(engine.require(), replace(plan, image_id=image), cache, {"VLLM_API_KEY": KEY})


def tree(cache: Path) -> dict[str, str]:
    """Return the sha256 of every file of the CACHE; Inductor's empty lock files come and go."""
    return {
        str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(cache.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.long
def test_the_patched_engine_loads_what_it_saved(built_image: BuiltImage, plan: LaunchPlan, cache: Path) -> None:
    cold = start(built_image.id, plan, cache)
    assert SAVED in cold
    assert LOADED not in cold
    saved = tree(cache)
    assert any(name.endswith("/model") for name in saved)
    warm = start(built_image.id, plan, cache)
    assert LOADED in warm
    assert FAILED not in warm
    assert SAVED not in warm
    assert tree(cache) == saved
    for path in cache.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


@pytest.mark.long
def test_the_stock_engine_compiles_again(stock_image: str, plan: LaunchPlan, cache: Path) -> None:
    """What the patch is for. When this fails on a new version, the patch can be dropped."""
    cold = start(stock_image, plan, cache)
    assert SAVED in cold
    warm = start(stock_image, plan, cache)
    assert FAILED in warm
    assert "'function' object has no attribute 'finalize_loading'" in warm
    assert LOADED not in warm
    assert SAVED in warm


COMPILE_FACTORS = "import json, vllm.envs; print('factors', json.dumps(vllm.envs.compile_factors(), default=str))"


def test_the_api_key_is_no_compile_factor_of_the_engine(
    docker_client: DockerClient, built_image: BuiltImage, stock_image: str
) -> None:
    """vLLM leaves it out since 0.29.0; api-key-out-of-compile-key does where the series carries it."""

    def factors(image: str) -> dict[str, object]:
        printed = docker_client.containers.run(
            image,
            ["-c", COMPILE_FACTORS],
            entrypoint=["/opt/venv/bin/python"],
            environment={"VLLM_API_KEY": KEY, "HOME": "/tmp", "USER": "nvllm"},
            network_mode="none",
            remove=True,
        )
        (line,) = [one for one in printed.decode().splitlines() if one.startswith("factors ")]
        found = json.loads(line.removeprefix("factors "))
        assert isinstance(found, dict)
        return found

    patched = factors(built_image.id)
    assert patched
    assert KEY not in json.dumps(patched)
    assert patched == factors(stock_image)
