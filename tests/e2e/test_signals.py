"""Interrupting and killing: whatever instant it comes at, nothing is left that a later run would trust wrongly."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from nvllm.host import locks
from nvllm.serve import health
from support.engine_world import IMAGE, World, Worlds, alive, until

pytestmark = pytest.mark.engine


def said(world: World, text: str) -> bool:
    log = world.run_directory() / "engine.log"
    return log.is_file() and text in log.read_text()


def in_the_gate(world: World) -> None:
    """Wait until the container of WORLD has passed the gate, and imports vLLM."""
    until(lambda: said(world, '"event": "passed"'), "the gate has passed")


def served(world: World, process: subprocess.Popen[str]) -> None:
    """Wait until WORLD is ready, as the supervisor PROCESS says on its stdout."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"ready: {world.instance()} at http://127.0.0.1:{world.port}"), line


def nothing_is_left(world: World, client: DockerClient) -> None:
    assert world.containers(client) == []
    assert locks.status(world.places.locks) == ()
    assert not health.healthy(world.port)
    assert world.serve("--dry-run").code == 0  # it could be served again


def only(world: World) -> dict[str, Any]:
    """What `status` says of the instance of WORLD."""
    listed = world.nvllm("status", "--json").result["instances"]
    (found,) = [one for one in listed if one["instance"] == world.instance()]
    assert isinstance(found, dict)
    return found


def test_a_start_that_is_interrupted(worlds: Worlds, docker_client: DockerClient) -> None:
    """By SIGHUP, of which Python alone would die; `tests/unit/cli/test_main.py` has the other signals."""
    world = worlds.make()
    process = world.supervisor()
    in_the_gate(world)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (129, "")
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    nothing_is_left(world, docker_client)
    assert (world.state()["stage"], world.state()["reason"]) == ("failed", "interrupted")


def test_a_detached_start_that_is_interrupted(worlds: Worlds, docker_client: DockerClient) -> None:
    """The supervisor has a session of its own, so the terminal's Ctrl-C reaches only who waits for it."""
    world = worlds.make()
    process = subprocess.Popen(
        world.argv("serve", IMAGE, "--profile", world.profile(), "--detach"),
        env=world.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    world.started.append(process)
    in_the_gate(world)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert not alive(world.state()["supervisor"])
    nothing_is_left(world, docker_client)


def test_a_container_that_somebody_kills(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    process = world.supervisor()
    in_the_gate(world)
    (container,) = world.containers(docker_client)
    container.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "NV703" in err
    assert "exit status 137" in err
    nothing_is_left(world, docker_client)


def test_a_start_that_is_stopped(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    process = world.supervisor()
    in_the_gate(world)
    assert world.nvllm("stop", world.instance()).code == 0
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")  # it never became ready
    assert "it was asked to stop" in err
    nothing_is_left(world, docker_client)


def test_ctrl_c_ends_what_is_served(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    process = world.supervisor()
    served(world, process)
    assert only(world)["stage"] == "ready"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted"
    nothing_is_left(world, docker_client)
    assert (world.state()["stage"], world.state()["reason"]) == ("stopped", "interrupted")
    assert only(world)["stage"] == "stopped"
    page = world.nvllm("status", "--metrics").out
    labels = f'instance_name="{world.instance()}",image="cpu",profile="{world.profile()}"'
    assert f"nvllm_instance_up{{{labels}}} 0.0\n" in page
    assert f"nvllm_instance_kv_cache_usage_ratio{{{labels}" not in page


def test_a_supervisor_without_its_state_is_found_by_the_label(worlds: Worlds, docker_client: DockerClient) -> None:
    """Killed, and its run directory lost as well: the label alone leads to the container."""
    world = worlds.make()
    process = world.supervisor()
    in_the_gate(world)
    process.kill()
    process.wait()
    (container,) = world.containers(docker_client)
    world.run_directory().rename(Path(world.directory, "lost"))
    found = only(world)
    assert (found["stage"], found["supervised"], found["container"]) == ("running", False, container.id)
    assert world.nvllm("stop", world.instance()).code == 0
    nothing_is_left(world, docker_client)
