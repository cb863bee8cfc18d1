"""The image of a work tree: that of its build with one layer on top, under no name that a build has."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.progress import Silent
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder
from nvllm.image.development import DevelopmentBuilder
from nvllm.image.identity import IDENTITY_PATH, Build
from nvllm.layers.oci import Image
from nvllm.layers.patchlayer import Patched
from support import layersamples
from support.buildable import IMAGE, Buildable

DIGEST = "0123456789abcdef" * 4
CHANGED = Patched({"vllm/core.py": b"EDITED = 1\n", "vllm/long.py": None}, {"vllm/core.py": 0o644})


@pytest.fixture
def made(tmp_path: Path, compiled_once: None) -> Buildable:
    return Buildable(tmp_path)


def build_of(made: Buildable) -> Build:
    return identity.load_build(made.project, IMAGE, None)[0]


def development(made: Buildable) -> tuple[Build, Image]:
    build = replace(build_of(made), development=DIGEST)
    return build, DevelopmentBuilder(made.project, made.places, Silent(), CHANGED, offline=True).image(build)


def test_one_layer_lies_over_those_of_the_build(made: Buildable) -> None:
    whole = ImageBuilder(made.project, made.places, Silent(), offline=True).image(build_of(made))
    _, image = development(made)
    assert image.layers[:-2] == whole.layers[:-1]
    over, own = image.layers[-2:]
    with tarfile.open(over.path) as tar:
        names = {member.name for member in tar if member.isreg()}
    site, cached = f"opt/venv/lib/python{layersamples.PYTHON}/site-packages/vllm", layersamples.PYTHON.replace(".", "")
    assert names == {
        f"{site}/core.py",
        f"{site}/__pycache__/core.cpython-{cached}.pyc",
        f"{site}/.wh.long.py",
        f"{site}/__pycache__/.wh.long.cpython-{cached}.pyc",
    }
    with tarfile.open(own.path) as tar:
        member = tar.extractfile(IDENTITY_PATH)
        assert member is not None
        assert DIGEST in member.read().decode()


def test_nothing_of_a_build_names_it(made: Buildable) -> None:
    before = build_of(made)
    build, image = development(made)
    assert build.build_hash != before.build_hash
    assert not {*build.tags} & {*before.tags}
    assert all(tag.startswith("nvllm-dev:") for tag in build.tags)
    assert image.development == DIGEST
    assert json.loads(image.config)["config"]["Labels"]["nvllm.build-hash"] == build.build_hash
    assert "development" not in before.factors
