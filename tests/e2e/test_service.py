"""A service on the real engine: it is started again, an orphan is ended, and a stop lets requests finish."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from typing import Any

import httpx2
import pytest
from docker import DockerClient

from nvllm.core.canonical import Json
from nvllm.core.spec import LOOPBACK
from nvllm.host import locks
from nvllm.serve import health
from support.engine_world import MODEL, World, Worlds, until

pytestmark = pytest.mark.engine

RESTART = {"    gpu: null\n": "    gpu: null\n    restart: {attempts: 1, within: 3600, pause: 1}\n"}
DRAIN = {"drain-timeout: 10": "drain-timeout: 30"}


def ready(world: World) -> subprocess.Popen[str]:
    process = world.supervisor()
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"ready: {world.instance()}"), line
    return process


def instance(world: World) -> dict[str, Any]:
    listed = world.nvllm("status", "--json").result["instances"]
    (found,) = [one for one in listed if one["instance"] == world.instance()]
    assert isinstance(found, dict)
    return found


def killed(world: World, client: DockerClient) -> str:
    """Kill the engine of WORLD as the kernel does without memory; return the id of its container."""
    (container,) = world.containers(client)
    container.kill()
    return str(container.id)


@pytest.mark.long
def test_an_engine_that_is_killed_comes_back_so_often_and_no_more(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make(RESTART)
    process = ready(world)
    first = killed(world, docker_client)
    until(lambda: instance(world)["stage"] == "ready" and instance(world)["container"] != first, "it is back", 180)
    assert health.healthy(world.port)
    assert instance(world)["supervised"]
    assert len(instance(world)["deaths"]) == 1
    assert killed(world, docker_client) != first
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "NV706" in err
    assert [line for line in err.splitlines() if line.startswith("RESTARTED")] != []
    found = instance(world)
    assert (found["stage"], found["supervised"], len(found["deaths"])) == ("failed", False, 2)
    assert all(death["reason"].startswith("NV703 engine died: killed (exit status 137)") for death in found["deaths"])
    assert all(death["lines"] for death in found["deaths"])
    assert world.containers(docker_client) == []
    assert locks.status(world.places.locks) == ()


@pytest.mark.long
def test_a_spec_that_changed_meanwhile_is_not_served_by_a_restart(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make(RESTART)
    process = ready(world)
    world.edit({"max-model-len: 128": "max-model-len: 64"})
    killed(world, docker_client)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "NV707" in err
    assert world.containers(docker_client) == []


def test_the_next_serve_ends_an_orphan(worlds: Worlds, docker_client: DockerClient) -> None:
    """Its supervisor was killed. As long as anything else is refused, it serves on."""
    world = worlds.make(DRAIN)
    process = ready(world)
    process.kill()
    process.wait()
    (orphan,) = world.containers(docker_client)
    # The kernel frees its locks, the engine goes on, and its label names it.
    assert (orphan.status, health.healthy(world.port)) == ("running", True)
    assert locks.status(world.places.locks) == ()
    left = instance(world)
    assert (left["stage"], left["supervised"], left["container"]) == ("ready", False, orphan.id)
    (row,) = [line for line in world.nvllm("status").out.splitlines() if world.instance() in line]
    assert row.rstrip().endswith("no")
    weights = next(world.model.glob("*.safetensors"))
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused = world.serve("--detach")
    assert (refused.code, refused.codes) == (3, ["NV403"])
    assert health.healthy(world.port)
    weights.write_bytes(data)
    assert world.serve("--dry-run").code == 0
    orphan.reload()
    assert orphan.status == "running"
    again = world.serve("--detach")
    assert again.code == 0, again
    assert f"ORPHAN {world.instance()}: nobody supervises container {str(orphan.id)[:12]}; it is ended" in again.err
    (container,) = world.containers(docker_client)
    assert container.id != orphan.id
    assert instance(world)["supervised"]
    assert world.nvllm("stop", "--all", "--json").result == {
        "instances": [{"instance": world.instance(), "container": container.id}]
    }
    assert world.containers(docker_client) == []


def stream(world: World, tokens: int, begun: threading.Event, ends: list[str]) -> None:
    """Ask for TOKENS tokens as a stream, set BEGUN at the first, and append to ENDS why each answer ended."""
    question = {"model": MODEL, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    address = health.url(LOOPBACK, world.port, "v1/completions")
    with httpx2.Client(timeout=60, trust_env=False) as client, client.stream("POST", address, json=question) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                begun.set()
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                ends.extend([choice["finish_reason"]] if choice["finish_reason"] else [])
            elif line == "data: [DONE]":
                ends.append(line)


def accepted(world: World) -> bool:
    """Return whether a new request gets a token. vLLM answers those that it refuses with status 200, and an abort."""
    try:
        question: Json = {"model": MODEL, "prompt": "x", "max_tokens": 1}
        answer = health.answer("POST", world.port, "v1/completions", question, 10.0)
    except httpx2.HTTPError:
        return False
    return answer.status == 200 and json.loads(answer.text)["choices"][0]["finish_reason"] != "abort"


@pytest.mark.parametrize("ending", ["nvllm stop", pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_a_stop_lets_requests_finish_and_takes_no_new_ones(
    worlds: Worlds, docker_client: DockerClient, ending: str
) -> None:
    """The tiny model answers 100 tokens in a second or so: its processes are slowed down while it does."""
    world = worlds.make(DRAIN)
    process = ready(world)
    (container,) = world.containers(docker_client)
    begun, ends = threading.Event(), list[str]()
    asking = threading.Thread(target=stream, args=(world, 110, begun, ends))
    docker_client.api.update_container(str(container.id), cpu_period=100_000, cpu_quota=20_000)
    asking.start()
    assert begun.wait(60)
    stopping = None
    if ending == "SIGTERM":
        os.kill(process.pid, signal.SIGTERM)
    else:
        stopping = world.start("stop", world.instance())
    until(
        lambda: b"mode=drain" in container.logs(), "it drains", 30
    )  # its supervisor, which stops it, reads no log now
    until(lambda: not accepted(world), "new requests are refused", 30)
    assert asking.is_alive(), "the old one is still under way"
    asking.join()
    assert ends == ["length", "data: [DONE]"]
    process.communicate(timeout=60)
    if stopping is not None:
        assert stopping.wait(timeout=60) == 0
    assert world.containers(docker_client) == []
    assert world.state()["stage"] == "stopped"
