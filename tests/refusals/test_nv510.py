"""NV510, engine unreachable: no Docker engine answers, or Docker's context in use leads to none."""

from __future__ import annotations

import multiprocessing
import os
import socket
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal
from nvllm.engine import engine
from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import HOST, PLAN, refusals


def _refused(problem: engine.Engine | host.EngineProblem) -> Refusal:
    """Return what the checks say of PROBLEM."""
    assert isinstance(problem, host.EngineProblem)
    facts = replace(HOST, engine=None, engine_problem=problem)
    (found,) = refusals(checks.Subject(PLAN, facts))
    assert (found.code, found.expected) == ("NV510", "a Docker engine that answers")
    return found


def test_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    refusal = _refused(engine.connect())
    assert refusal.where == f"unix://{tmp_path}/docker.sock"
    assert "No such file or directory" in refusal.found
    assert refusal.cure == "sudo systemctl start docker"


def test_a_socket_that_a_dead_engine_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
    refusal = _refused(engine.connect())
    assert "Connection refused" in refusal.found
    assert refusal.cure == "sudo systemctl start docker"


def _ask_as_nobody(answer: Connection) -> None:
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    answer.send(engine.connect())


def test_a_socket_that_this_user_may_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question is asked by a child that is not root, since root may open everything."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0)
        server.listen()
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_ask_as_nobody, args=(theirs,))
        child.start()
        assert ours.poll(30)
        problem = ours.recv()
        child.join(30)
    refusal = _refused(problem)
    assert "Permission denied" in refusal.found
    assert refusal.cure.startswith("run nvllm by sudo")
    assert "usermod" not in refusal.cure


def test_a_context_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")
    refusal = _refused(engine.connect())
    assert (refusal.where, refusal.found) == ("docker context elsewhere", f"no such context in {tmp_path}")
    assert refusal.cure == "export DOCKER_CONTEXT=default"


def test_an_engine_that_nobody_looked_at_is_not_taken_for_one() -> None:
    (found,) = refusals(checks.Subject(None, replace(HOST, engine=None)))
    assert (found.code, found.where, found.found) == ("NV510", "docker engine", "no answer")
