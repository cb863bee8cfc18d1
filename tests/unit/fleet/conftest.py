"""What the tests of fleet share: the layers of the small image, built once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nvllm.core.progress import Silent
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder
from support.buildable import IMAGE, Buildable


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layer cache of a host that has built the image."""
    made = Buildable(tmp_path_factory.mktemp("built"))
    build, _ = identity.load_build(made.project, IMAGE, None)
    ImageBuilder(made.project, made.places, Silent(), offline=True).image(build)
    return made.places.layers


@pytest.fixture
def buildable(tmp_path: Path, built: Path) -> Buildable:
    """A project whose image's layers are in the layer cache, as after a build."""
    made = Buildable(tmp_path)
    shutil.copytree(built, made.places.layers, dirs_exist_ok=True)
    return made
