"""Inductor's directory of a blessed cache, with the real Inductor of image `cpu`: what it writes when it only loads.

The save format is the one that vLLM uses on a GPU: a file for each compiled graph. Beside the graph is a small function
that is compiled for itself, as vLLM's sampler has them. On the CPU Inductor unpacks the file in the same way.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from docker import DockerClient
from docker.types import Mount

from nvllm.runtime import seed
from support.engine_world import BuiltImage

pytestmark = [pytest.mark.engine, pytest.mark.long]

SCRIPT = """
import os, sys
import torch
from torch._inductor import CompiledArtifact, standalone_compile

@torch.compile
def small(x, values):
    return (x >= values).sum(-1)

def backend(graph, inputs):
    made = standalone_compile(graph, inputs, dynamic_shapes="from_graph", options={"config_patches": {}})
    made.save(path="/cache/graph", format="binary")
    return lambda *inputs: made(*inputs)

def files():
    return {os.path.join(place, name) for place, _, names in os.walk("/cache") for name in names}

x, before = torch.ones(8, 8), files()
if sys.argv[1] == "compile":
    torch.compile(lambda x: torch.relu(x @ x) + 1, backend=backend)(x)
else:
    CompiledArtifact.load(path="/cache/graph", format="binary")
assert small(x, x[:, :1]).tolist() == [8] * 8
print("new", *sorted(path for path in files() - before if not path.endswith(".lock")))
"""
INDUCTOR = "/cache/inductor_cache"


def ran(
    docker: DockerClient, image: BuiltImage, script: Path, mounts: list[Mount], tmpfs: list[str], *argv: str
) -> str:
    """Return what the SCRIPT prints in a container of IMAGE, in which only MOUNTS and TMPFS may be written."""
    output = docker.containers.run(
        image.id,
        entrypoint=["/opt/venv/bin/python", "-I"],
        command=[*argv],
        environment={"TORCHINDUCTOR_CACHE_DIR": INDUCTOR, "HOME": "/tmp", "USER": "nvllm"},
        mounts=[Mount("/script.py", str(script), "bind", read_only=True), *mounts],
        tmpfs=dict.fromkeys(("/tmp", *tmpfs), "rw,exec,mode=1777"),
        user=f"{os.geteuid()}:{os.getegid()}",
        read_only=True,
        network_mode="none",
        remove=True,
        stderr=True,
    )
    return bytes(output).decode()


@pytest.fixture
def script(elsewhere: Path) -> Path:
    path = elsewhere / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def cache(docker_client: DockerClient, built_image: BuiltImage, script: Path, elsewhere: Path) -> Path:
    """A cache that was compiled, with an empty directory for the lock files."""
    made = elsewhere / "cache"
    made.mkdir()
    ran(docker_client, built_image, script, [Mount("/cache", str(made), "bind")], [], "/script.py", "compile")
    for lock in (made / "inductor_cache/locks").iterdir():
        lock.unlink()
    return made


def test_inductor_writes_into_its_directory_when_it_only_loads(
    docker_client: DockerClient, built_image: BuiltImage, script: Path, cache: Path, elsewhere: Path
) -> None:
    read_only = Mount("/cache", str(cache), "bind", read_only=True)

    def loaded(tmpfs: str, *argv: str, more: tuple[Mount, ...] = ()) -> str:
        return ran(docker_client, built_image, script, [read_only, *more], [tmpfs], *argv, "/script.py", "load")

    # Where only its lock files may be written, it cannot be loaded.
    with pytest.raises(Exception, match="Read-only file system"):
        loaded(f"{INDUCTOR}/locks")
    # From an empty scratch all is compiled again.
    assert ".so" in loaded(INDUCTOR)
    # From a scratch with the blessed files nothing is, and the small function is found.
    launch = elsewhere / "launch.json"
    launch.write_text(json.dumps({"cache": {"seeds": [{"from": "/blessed/0", "to": INDUCTOR}]}}))
    seeded = (
        Mount("/seed.py", seed.__file__, "bind", read_only=True),
        Mount(seed.EXPECTATIONS, str(launch), "bind", read_only=True),
        Mount("/blessed/0", str(cache / "inductor_cache"), "bind", read_only=True),
    )
    said = loaded(INDUCTOR, "/seed.py", "/opt/venv/bin/python", "-I", more=seeded)
    assert said.splitlines()[-1] == "new"
