"""The three commands that nvllm is for, as they are typed: build, serve --profile lower8, and a bisect by rebuilding.

The project is nvllm's own with image `cpu` alone, whose profile has the name of the fork's. It stands in for the card:
lower8 itself needs a DGX Spark and the fork's vLLM, compiled. Everything else is real: the image, the engine and its
answer, and the images that the bisect builds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.spec import projectfile
from support.bisect_engine import REAL, bisecting
from support.engine_world import MODEL, BuiltImage, World, Worlds

pytestmark = pytest.mark.engine

INSTANCE = "nvllm-cpu-lower8"
PROBE = """\
#!/bin/sh
case "$NVLLM_PATCHES" in *conv-weight-layout*) exit 1;; esac
"""


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    with bisecting(worlds, docker_client) as made:
        made.edit({f"  {made.profile()}:": "  lower8:"})
        root = made.project.root
        for other in ("gb10", "sm120"):
            made.project.spec(other).unlink()
        (root / projectfile.NAME).write_bytes(projectfile.written("cpu"))
        (root / "probe.sh").write_text(PROBE)
        (root / "probe.sh").chmod(0o755)
        yield made
        for left in docker_client.containers.list(all=True, filters={"name": f"^/{INSTANCE}$"}):
            left.remove(force=True)


def typed(world: World, line: str) -> subprocess.Popen[str]:
    """Start LINE in a shell that stands in the project of WORLD and finds nvllm on its PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=world.project.root,
        env={**world.env, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(world: World, line: str) -> str:
    """Type LINE, and return what it printed."""
    process = typed(world, line)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, f"{line}\n{out}\n{err}"
    return out


def test_the_three_commands(world: World, built_image: BuiltImage) -> None:
    assert ended(world, "nvllm build").startswith(built_image.tag)

    serving = typed(world, "nvllm serve --profile lower8")
    try:
        assert serving.stdout is not None
        ready = serving.stdout.readline()
        assert ready.startswith(f"ready: {INSTANCE} at http://127.0.0.1:{world.port}"), serving.communicate()
        asked = {"model": MODEL, "prompt": "hello world", "max_tokens": 4}
        request = urllib.request.Request(
            f"http://127.0.0.1:{world.port}/v1/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=60)

    ends = f"--good aot-load-guard --bad {','.join(REAL)}"
    ended(world, f"nvllm bisect start {ends} --build-only --test ./probe.sh --repeats 1")
    found = json.loads(ended(world, "nvllm bisect run --json"))["result"]["found"]
    assert found["culprits"] == ["conv-weight-layout"]
    assert found["certified"]
