"""Two clones of one project side by side on one host: neither sees or touches what is the other's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.core.paths import Project
from support.engine_world import IMAGE, Done, Served, World, run

pytestmark = pytest.mark.engine


@pytest.fixture
def clone(served: Served, tmp_path: Path) -> Project:
    """A copy of the project of the world that is served; it has the same host, home and engine."""
    shutil.copytree(served.world.project.root, tmp_path / "clone")
    return Project(tmp_path / "clone")


def nvllm(world: World, of: Project, *args: str) -> Done:
    argv = world.argv(*args, "--json")
    return run([*argv[:3], "--project", str(of.root), *argv[5:]], world.env)


def test_a_clone_sees_the_instance_and_cannot_stop_it(served: Served, clone: Project) -> None:
    world, name = served.world, served.world.instance()
    listed = nvllm(world, clone, "status").result["instances"]  # also what others serve on this host
    (seen,) = [instance for instance in listed if instance["instance"] == name]
    assert (seen["stage"], seen["project"]) == ("ready", str(world.project.root))
    for command in ("stop", "logs"):
        assert nvllm(world, clone, command, name).refusal["code"] == "NV921"
        assert nvllm(world, clone, command).refusal["code"] == "NV107"
    planned = nvllm(world, clone, "serve", IMAGE, "--profile", world.profile(), "--dry-run")
    assert planned.document["result"]["instance"] == f"{name}-{clone.id[:7]}"
    assert world.serve("--dry-run").document["result"]["instance"] == name
    served.container.reload()
    assert served.container.status == "running"
    assert world.nvllm("logs", "--tail", "1", "--json").result["instance"] == name


def test_a_clone_has_bisects_of_its_own(served: Served, clone: Project, tmp_path: Path) -> None:
    world = served.world
    (probe := tmp_path / "probe.sh").write_text("#!/bin/sh\nexit 0\n")
    probe.chmod(0o755)
    start = ("bisect", "start", IMAGE, "--build-only", "--test", str(probe))
    begun = world.nvllm(*start, "--json").result["journal"]
    before = Path(begun).read_bytes()
    for command in ("status", "run", "report"):
        assert nvllm(world, clone, "bisect", command).refusal["code"] == "NV107"
    own = nvllm(world, clone, *start).result["journal"]
    assert own != begun
    assert Path(begun).read_bytes() == before
    assert nvllm(world, clone, "bisect", "list").result["bisects"][0]["image"] == IMAGE
    Path(begun).unlink()


def test_a_build_says_that_the_shared_tag_has_moved(
    served: Served, clone: Project, docker_client: DockerClient
) -> None:
    world = served.world
    newest = docker_client.images.get(f"nvllm:{IMAGE}")
    try:
        built = nvllm(world, clone, "build", IMAGE, "--patches", "request-shapes").result
        assert built["moved_from"].startswith(f"nvllm:{IMAGE}-")
        again = world.nvllm("build", IMAGE)
        assert f"nvllm:{IMAGE}, which named {built['tag']} until now" in again.out
        assert "until now" not in world.nvllm("build", IMAGE).out
    finally:
        docker_client.api.tag(newest.id, "nvllm", IMAGE)
        docker_client.api.remove_image(built["tag"])
