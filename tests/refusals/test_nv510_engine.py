"""NV510, engine unreachable, through the commands: no socket, a dead one, and one that talks nonsense.

These need no engine: DOCKER_HOST names what is wrong.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine_world import ROOT, Done, run

pytestmark = pytest.mark.engine  # it needs none, and runs with those that do: each of its tests is a whole process

COMMANDS = [
    ["status"],
    ["stop"],
    ["gc", "--dry-run"],
    ["doctor"],
    ["doctor", "cpu", "--profile", "tiny-eager", "--offline"],
    ["serve", "cpu", "--profile", "tiny-eager"],
    ["build", "cpu"],
]


def nvllm(tmp_path: Path, host: str, *args: str) -> Done:
    env = {**os.environ, "NVLLM_HOME": str(tmp_path / "home"), "DOCKER_HOST": host}
    return run([sys.executable, "-m", "nvllm", "--project", str(ROOT), "--json", *args], env)


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_no_socket(tmp_path: Path, args: list[str]) -> None:
    host = f"unix://{tmp_path}/docker.sock"
    done = nvllm(tmp_path, host, *args)
    assert done.code == 3
    (refusal,) = [one for one in done.refusals if one["code"] == "NV510"]
    assert (refusal["where"], refusal["expected"]) == (host, "a Docker engine that answers")
    assert refusal["cure"] == "sudo systemctl start docker"
    assert "Traceback" not in done.err


@pytest.fixture
def babbler(tmp_path: Path) -> Iterator[str]:
    """A socket behind which something answers that is no engine."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def babble() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # the test is over
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=babble, daemon=True)
        thread.start()
        yield f"unix://{tmp_path}/s"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_something_that_is_no_engine(tmp_path: Path, babbler: str) -> None:
    done = nvllm(tmp_path, babbler, "status")
    assert (done.code, done.codes) == (3, ["NV510"])
    assert done.refusal["where"] == babbler
    assert done.refusal["cure"] == "docker version"


def test_a_socket_that_a_dead_engine_left(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    done = nvllm(tmp_path, f"unix://{tmp_path}/s", "status")
    assert (done.code, done.codes) == (3, ["NV510"])
    assert done.refusal["cure"] == "sudo systemctl start docker"


def test_an_address_that_is_none(tmp_path: Path) -> None:
    done = nvllm(tmp_path, "no address at all", "status")
    assert (done.code, done.codes) == (3, ["NV510"])
