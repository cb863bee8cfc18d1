"""Silence is a fault: an engine that answers nothing is ended in time, whatever silenced it. On the real engine.

The supervisor itself may be silenced too, and then blames nobody. An engine writes to no disk: what it has of one is
mounted read-only. So a disk that stops is the supervisor's: `test_stopped_disk.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import DockerClient
from docker.models.containers import Container

from nvllm.serve import health
from support.engine_world import World, Worlds, until

pytestmark = pytest.mark.engine

STALL = 20
QUICK = {"start-timeout: 300": f"start-timeout: 300\n      stall-timeout: {STALL}"}


def processes(container: Container) -> list[int]:
    """Return the processes of CONTAINER, as this host numbers them; the first is the one that serves HTTP."""
    first = int(container.attrs["State"]["Pid"])  # not of `docker top`, which needs a `ps` on this host
    namespace = os.readlink(f"/proc/{first}/ns/pid")
    members = []
    for link in Path("/proc").glob("[0-9]*/ns/pid"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if os.readlink(link) == namespace:
                members.append(int(link.parts[2]))
    return [first, *(process for process in members if process != first)]


@contextlib.contextmanager
def front_stopped(world: World, container: Container) -> Iterator[None]:
    os.kill(processes(container)[0], signal.SIGSTOP)
    yield


@contextlib.contextmanager
def all_stopped(world: World, container: Container) -> Iterator[None]:
    for process in processes(container):
        os.kill(process, signal.SIGSTOP)
    yield


@contextlib.contextmanager
def proxy_dead(world: World, container: Container) -> Iterator[None]:
    """Kill what publishes the port: the one docker-proxy with this world's port among its arguments."""
    proxies = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"docker-proxy" in (words := path.read_bytes().split(b"\0"))[0] and str(world.port).encode() in words
    ]
    (proxy,) = proxies
    os.kill(proxy, signal.SIGKILL)
    yield


@contextlib.contextmanager
def queue_full(world: World, container: Container) -> Iterator[None]:
    """Stop the front end for as long as it takes to fill its accept queue with connections that say nothing."""
    front = processes(container)[0]
    own = next(iter(container.attrs["NetworkSettings"]["Networks"].values()))["IPAddress"]
    os.kill(front, signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        for _ in range(3000):  # more than its backlog
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((own, 8000))
        yield


WAYS: dict[str, Callable[[World, Container], contextlib.AbstractContextManager[None]]] = {
    "the API server stopped": front_stopped,
    "every process stopped": all_stopped,
    "docker-proxy dead": proxy_dead,
    "the accept queue full": queue_full,
}


def ready(world: World, client: DockerClient) -> tuple[subprocess.Popen[str], Container]:
    process = world.supervisor()
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"ready: {world.instance()}"), line
    (container,) = world.containers(client)
    return process, container


def stage(world: World) -> tuple[str, bool]:
    listed = world.nvllm("status", "--json").result["instances"]
    (instance,) = [one for one in listed if one["instance"] == world.instance()]
    return instance["stage"], instance["supervised"]


SOON = ("the API server stopped",)
"""What each run of the tests tries; a minute each. `make test-long` tries the others."""


@pytest.mark.parametrize("way", [way if way in SOON else pytest.param(way, marks=pytest.mark.long) for way in WAYS])
def test_a_silent_engine_is_ended_in_time(worlds: Worlds, docker_client: DockerClient, way: str) -> None:
    world = worlds.make(QUICK)
    process, container = ready(world, docker_client)
    assert stage(world) == ("ready", True)
    with WAYS[way](world, container):
        began = time.monotonic()
        assert stage(world) == ("silent", True)
        process.wait(timeout=2 * STALL + 20)
        took = time.monotonic() - began
    _, err = process.communicate()
    assert took < 2 * STALL + 5, took  # 5 s for the end of the container
    assert process.returncode == 1
    assert "NV913" in err
    assert f"http://127.0.0.1:{world.port}/health" in err
    assert ("(docker-proxy) is dead or full" in err) == (way == "docker-proxy dead"), err
    assert world.containers(docker_client) == []
    assert stage(world) == ("failed", False)


@pytest.mark.long
def test_a_supervisor_that_was_suspended_blames_nobody(worlds: Worlds, docker_client: DockerClient) -> None:
    """It and the engine are stopped for longer than the stall timeout, as by a host that is suspended."""
    world = worlds.make(QUICK)
    process, container = ready(world, docker_client)
    stopped = [process.pid, *processes(container)]
    for one in stopped:
        os.kill(one, signal.SIGSTOP)
    time.sleep(STALL + 5)  # the suspension itself
    for one in reversed(stopped):
        os.kill(one, signal.SIGCONT)
    until(lambda: health.healthy(world.port), "the engine answers again")
    time.sleep(STALL)  # the whole time in which it could be blamed
    assert process.poll() is None
    assert stage(world) == ("ready", True)
