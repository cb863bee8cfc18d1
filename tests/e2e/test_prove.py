"""`nvllm patch prove` on the real engine: tests that run in the image, and one that asks a served engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from docker import DockerClient

from support.bisect_engine import LICENSE, REAL, SERIES, Extra, extend
from support.engine_world import IMAGE, World, Worlds
from support.series_samples import write_tree

pytestmark = pytest.mark.engine

PLANTED = Extra("test-flag", "vllm/version.py", LICENSE, "OF_A_TEST = True\n")
TESTS = b"""\
import os

import pytest
import vllm
import torch


def test_its_own():
    from vllm import version

    assert vars(version).get("OF_A_TEST"), vllm.__file__


def test_of_anything():
    assert vllm.__version__ and torch.ones(1).sum() == 1
"""
ASKS = b"""\
import os
import urllib.request

import pytest

pytestmark = pytest.mark.nvllm_engine


def test_of_any_engine():
    with urllib.request.urlopen(os.environ["NVLLM_ADDRESS"] + "/health", timeout=60) as answer:
        assert answer.status == 200
"""


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    """A world whose patch set is a small one, with a planted patch. The images that it makes go again."""
    before = {tag for image in docker_client.images.list("nvllm") for tag in image.tags}
    made = worlds.make()
    write_tree(made.project.root, {"proofs/test_flag.py": TESTS, "proofs/test_asks.py": ASKS})
    # As a checkout with the umask 077 has them: root's container runs as a user who cannot read them.
    (made.project.root / "proofs").chmod(0o700)
    extend(made, [PLANTED])
    head, _, rest = made.spec.read_text().partition("  enable:\n")
    kept = [f"    - {name}\n" for name in (*REAL, PLANTED.name)]
    after = [line for line in rest.splitlines(True) if not line.startswith("    - ") or "name:" in line]
    made.spec.write_text(f"{head}  enable:\n{''.join(kept)}{''.join(after)}")
    yield made
    made.end()
    for tag in {tag for image in docker_client.images.list("nvllm") for tag in image.tags} - before:
        docker_client.api.remove_image(tag)


def name_tests(world: World, *nodes: str) -> None:
    series = world.project.series(SERIES) / "series.yaml"
    before = "tests/e2e/test_bisect.py::test_two_patches_that_break_together_are_found"
    series.write_text(series.read_text().replace(before, ", ".join(nodes)))


def test_a_planted_patch_is_proved_by_its_test_and_not_by_another(world: World, docker_client: DockerClient) -> None:
    name_tests(world, "proofs/test_flag.py::test_its_own", "proofs/test_flag.py::test_of_anything")
    done = world.nvllm("patch", "prove", IMAGE, PLANTED.name, "--json")
    assert done.code == 1, done
    (patch,) = done.document["result"]["patches"]
    assert patch["state"] == "unproved"
    records = {one["node"].partition("::")[2]: one["record"] for one in patch["tests"]}
    assert {name: record["verdict"] for name, record in records.items()} == {
        "test_its_own": "proved",
        "test_of_anything": "passes-without",
    }
    own = records["test_its_own"]
    # It ran on the patched package of the image, by the image's own Python.
    assert own["without"]["text"].startswith("AssertionError: /opt/venv/lib/python3.11/site-packages/vllm/__init__.py")
    assert own["without"]["image"] != own["whole"]["image"]
    assert own["machine"].startswith("cpu-")
    assert [one.name for one in world.containers(docker_client)] == []


@pytest.mark.long
def test_a_proof_may_ask_a_served_engine(world: World, docker_client: DockerClient) -> None:
    name_tests(world, "proofs/test_asks.py::test_of_any_engine")
    done = world.nvllm("patch", "prove", IMAGE, PLANTED.name, "--profile", world.profile(), "--json")
    assert done.code == 1, done
    (patch,) = done.document["result"]["patches"]
    assert [(one["where"], one["record"]["verdict"]) for one in patch["tests"]] == [("engine", "passes-without")]
    assert [one.name for one in world.containers(docker_client)] == []
