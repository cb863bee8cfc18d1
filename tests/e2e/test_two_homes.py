"""Two homes on one real engine: tags, images and containers of each are its own. Nothing is started."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import ImageNotFound

from nvllm.core.paths import Places
from nvllm.core.progress import Silent
from nvllm.engine import engine
from nvllm.host.facts import HOME_LABEL, INSTANCE_LABEL, RUN_LABEL
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder
from nvllm.serve import stopping
from nvllm.serve.fresh import FreshInstances
from support.buildable import IMAGE, Buildable
from support.engine_world import Done, run

pytestmark = pytest.mark.engine


def test_neither_home_touches_what_is_the_others(tmp_path: Path, docker_client: DockerClient) -> None:
    made = Buildable(tmp_path)
    build, _ = identity.load_build(made.project, IMAGE, None)
    image = ImageBuilder(made.project, made.places, Silent(), offline=True).image(build)
    first, second = made.places, Places(tmp_path / "second/cache", tmp_path / "second/state")
    second.cache.parent.mkdir()
    second.cache.symlink_to(first.cache)  # the locked files and layers, which are the same anywhere

    def nvllm(where: Places, *words: str) -> Done:
        argv = [sys.executable, "-m", "nvllm", "--project", str(made.project.root), *words, "--json"]
        return run(argv, {**os.environ, "NVLLM_HOME": str(where.state.parent)})

    def tags() -> set[str]:
        return {tag for one in docker_client.images.list("nvllm") for tag in one.tags if tag in every}

    own = tuple(f"{tag}-{second.id[:7]}" for tag in build.tags)
    every = {*build.tags, *own}
    try:
        assert nvllm(first, "build", IMAGE, "--offline").result["tag"] == build.tags[0]
        assert nvllm(second, "build", IMAGE, "--offline").result["tag"] == own[0]
        assert tags() == every

        # A trial of either home, as its name and labels say; created, and never started.
        docker = engine.require()
        instances = [FreshInstances(made.project, one, docker, "bisect", "nvllm bisect run") for one in (first, second)]
        names = [f"{one.prefix(IMAGE, 'eager')}1-1" for one in instances]
        for where, name in zip((first, second), names, strict=True):
            labels = {INSTANCE_LABEL: name, HOME_LABEL: where.id, RUN_LABEL: str(where.runs / name)}
            docker_client.api.create_container(build.tags[0], ["-"], name=name, labels=labels)
        refused, cure = (
            nvllm(first, "stop", names[1]).refusal,
            f"NVLLM_HOME={second.state.parent} nvllm stop {names[1]}",
        )
        assert (refused["code"], refused["cure"]) == ("NV921", cure)
        instances[0].clear(IMAGE, "eager")
        left = {one.name for one in docker.containers()}
        assert (names[0] in left, names[1] in left) == (False, True)
        assert stopping.stop(docker, second, names[1])

        # The first home no longer needs the image: its names go, and the image stays for the second.
        made.project.lock(IMAGE).unlink()
        made.project.spec(IMAGE).unlink()
        nvllm(first, "gc", "--keep-younger", "0").result  # noqa: B018 - that it was done
        assert tags() == set(own)
        nvllm(second, "gc", "--keep-younger", "0").result  # noqa: B018
        assert tags() == set()
    finally:
        for name in (one.name for one in engine.require().containers() if one.name.startswith(f"nvllm-{IMAGE}-eager")):
            docker_client.api.remove_container(name, force=True)
        for name in image.ids:
            with contextlib.suppress(ImageNotFound):
                docker_client.images.remove(name, force=True)
