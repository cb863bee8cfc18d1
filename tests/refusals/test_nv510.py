"""NV510, engine unreachable: no Docker engine answers. What is asked here is a socket, without a Docker client."""

from __future__ import annotations

import multiprocessing
import os
import socket
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from nvllm.core.refusal import Refusal
from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import HOST, PLAN, refusals


def _refused(problem: host.EngineProblem) -> Refusal:
    facts = replace(HOST, engine=None, engine_problem=problem)
    (found,) = refusals(checks.Subject(PLAN, facts))
    assert (found.code, found.expected) == ("NV510", "a Docker engine that answers")
    return found


def test_no_socket(tmp_path: Path) -> None:
    refusal = _refused(host.engine_problem(f"unix://{tmp_path}/docker.sock"))
    assert refusal.where == f"unix://{tmp_path}/docker.sock"
    assert refusal.found == "No such file or directory"
    assert refusal.cure == "systemctl start docker, or dockerd where no service manager runs"


def test_a_socket_that_a_dead_engine_left(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    refusal = _refused(host.engine_problem(f"unix://{tmp_path}/s"))
    assert refusal.found == "Connection refused"
    assert refusal.cure == "systemctl start docker, or dockerd where no service manager runs"


def _ask_as_nobody(endpoint: str, answer: Connection) -> None:
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    answer.send(host.engine_problem(endpoint))


def test_a_socket_that_this_user_may_not_open(tmp_path: Path) -> None:
    """The question is asked by a child that is not root, since root may open everything."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0)
        server.listen()
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_ask_as_nobody, args=(f"unix://{tmp_path}/s", theirs))
        child.start()
        assert ours.poll(30)
        problem = ours.recv()
        child.join(30)
    refusal = _refused(problem)
    assert refusal.found == "Permission denied"
    assert refusal.cure == "add yourself to the group docker (sudo usermod -aG docker $USER), and log in again"


def test_something_that_is_no_engine(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        refusal = _refused(host.engine_problem(f"unix://{tmp_path}/s"))
    assert refusal.found == "it takes connections, but does not answer as a Docker engine"
    assert refusal.cure == "run docker version, and fix what it reports"


def test_an_engine_that_nobody_looked_at_is_not_taken_for_one() -> None:
    (found,) = refusals(checks.Subject(None, replace(HOST, engine=None)))
    assert (found.code, found.where, found.found) == ("NV510", "docker engine", "no answer")
