"""A foreign image with our labels, files and tags, on the real engine: no command takes it for the build's.

Nothing of it is ever started: each command refuses before. The image is small; its base cannot run anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import ImageNotFound

from nvllm.core.progress import Silent
from nvllm.engine import engine
from nvllm.fleet import images
from nvllm.image import buildrecord, identity
from nvllm.image.builder import ImageBuilder
from nvllm.layers.oci import Image
from support import foreign_image, oci_registry
from support.buildable import IMAGE, Buildable
from support.engine_world import Done, run

pytestmark = pytest.mark.engine


@contextlib.contextmanager
def removed(client: DockerClient, *images: Image) -> Iterator[None]:
    """Remove IMAGES at the end, by either of their ids."""
    try:
        yield
    finally:
        for reference in (name for image in images for name in image.ids):
            with contextlib.suppress(ImageNotFound):
                client.images.remove(reference, force=True)


def test_a_foreign_image_is_refused_by_each_command(tmp_path: Path, docker_client: DockerClient) -> None:
    made = Buildable(tmp_path)
    build, _ = identity.load_build(made.project, IMAGE, None)
    image = ImageBuilder(made.project, made.places, Silent(), offline=True).image(build)
    foreign = foreign_image.of(image, tmp_path / "foreign.tar")
    env = {**os.environ, "NVLLM_HOME": str(made.home)}

    def nvllm(*words: str) -> Done:
        return run([sys.executable, "-m", "nvllm", "--project", str(made.project.root), *words, "--json"], env)

    def imaged(done: Done) -> set[str]:
        """Return the codes of what DONE said of the image, without what this host lacks besides."""
        assert done.code == 3, done
        return {code for code in done.codes if code.startswith("NV3")}

    with oci_registry.running() as kept, removed(docker_client, image, foreign):
        repository = kept.repository()
        pushed = images.push_image(foreign, images.tag_of(build), repository)
        by_digest = f"{repository.name}@{pushed.digest}"
        assert imaged(nvllm("pull", by_digest, IMAGE)) == imaged(nvllm("pull", by_digest)) == {"NV332"}
        assert imaged(nvllm("pull", str(repository.name), IMAGE, "--verify")) == {"NV308"}
        assert docker_client.images.list(filters={"reference": build.tags[0]}) == []

        # As an older nvllm left it: in the engine under our tags, and on record here.
        engine.require().load(foreign, build.tags, Silent())
        foreign_image.recorded_by_an_older_nvllm(foreign, build, made.places)
        serve = ("serve", IMAGE, "--profile", "eager", "--dry-run")
        assert imaged(nvllm(*serve)) == {"NV302"}
        assert imaged(nvllm("provenance", IMAGE)) == {"NV317"}
        assert nvllm("build", IMAGE, "--dry-run").result["outcome"] == "would be built"

        # The cure that the refusal names.
        assert nvllm("build", IMAGE, "--offline").result["image_id"] == image.id
        assert docker_client.images.get(build.tags[0]).id in image.ids
        assert imaged(nvllm(*serve)) == set()
        written = json.loads((made.places.builds / f"{build.build_hash}.json").read_text())
        assert (written["image_id"], written["proof"]) == (image.id, "built")
        assert buildrecord.read(made.places.builds, build.build_hash) is not None
