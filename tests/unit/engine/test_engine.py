"""The edge to the engine, as far as it can be shown without one: what is sent, and what silence comes to."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.plan import Workbench
from nvllm.core.refusal import Refused
from nvllm.engine import containers, engine
from nvllm.engine.engine import Engine
from nvllm.host.facts import EngineProblem
from support.engine_socket import Answer, answering
from support.plansamples import PLAN

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n{"ApiVersion":"1.41"}'


def test_an_engine_that_falls_silent_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that answers twice and then is gone; the real one cannot be taken away from the other tests."""
    path = str(tmp_path / "docker.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def answer_twice() -> None:
        for _ in range(2):
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(ANSWER)
        listener.close()
        Path(path).unlink()

    thread = threading.Thread(target=answer_twice)
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    found = engine.connect()
    thread.join()
    assert isinstance(found, Engine)
    with pytest.raises(Refused) as caught:
        found.containers()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV510", f"unix://{path}")
    assert list(found.logs("anything", follow=False)) == []


def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    found = engine.connect()
    assert isinstance(found, EngineProblem)
    assert found.kind == "absent"
    with pytest.raises(Refused):
        engine.require()


CONTAINER = "4f" * 32
TAR = bytes(10240)
"""An archive that ends where it begins."""


@contextmanager
def recording(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Answer on the socket PATH as an engine does that makes every container; yield what it was to make.

    What the client adds to a request by itself is what is looked for.
    """
    made: list[dict[str, Any]] = []

    def answer(method: str, asked: str, sent: bytes) -> Answer:
        if "/containers/create" in asked:
            made.append(json.loads(sent))
            return 201, {"Id": CONTAINER, "Warnings": []}, {}
        if method == "POST":
            return 200, {"StatusCode": 0}, {}
        if method == "DELETE" or "/logs?" in asked:
            return 200, b"", {}
        if "/archive?" in asked:
            return 200, TAR, {"X-Docker-Container-Path-Stat": "e30="}
        return 200, [] if "containers/json" in asked else {"Id": CONTAINER, "Config": {"Tty": True}}, {}

    with answering(path, answer):
        yield made


CREATES: dict[str, Callable[[Engine], object]] = {
    "a launch plan": lambda held: held.start(PLAN, {}),
    "a workbench": lambda held: held.start_workbench(Workbench(PLAN, "/cache"), {}),
    "a reader": lambda held: held.read_file("sha256:1", "/file"),
}


@pytest.mark.parametrize("what", CREATES)
def test_a_container_gets_none_of_the_proxies_of_its_operator(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's configuration names proxies with their passwords, and the client hands them to each container."""
    proxies = {"default": {"httpProxy": "http://me:hunter2@proxy:3128", "noProxy": "localhost"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with recording(tmp_path / "docker.sock") as made:
        CREATES[what](engine.require())
    (one,) = made
    assert "hunter2" not in json.dumps(one)
    names = {text.partition("=")[0].upper() for text in one.get("Env") or ()}
    assert not {name for name in names if name.endswith("PROXY")}


# What somebody else removes at the same time


def removed_elsewhere(questions: int) -> Callable[[str, str, bytes], Answer]:
    """Answer as Podman does of a container that somebody else removes: an error to whoever wants to stop or remove it,
    and to so many QUESTIONS how it is; then it is gone.
    """
    left = iter(range(questions))

    def answer(method: str, _: str, __: bytes) -> Answer:
        gone = method == "GET" and next(left, None) is None
        return 404 if gone else 500, {"message": "container state improper"}, {}

    return answer


def test_a_container_that_goes_while_it_is_stopped_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with answering(tmp_path / "docker.sock", removed_elsewhere(questions=4)):
        engine.require().stop(CONTAINER, 1)


def test_a_container_that_cannot_be_removed_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(containers, "REMOVAL_TIMEOUT", 0.3)
    with (
        answering(tmp_path / "docker.sock", removed_elsewhere(questions=1000)),
        pytest.raises(Refused) as caught,
    ):
        engine.require().remove(CONTAINER)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found) == ("NV515", "500: container state improper")


def test_a_container_that_neither_starts_nor_goes_says_why_it_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(method: str, asked: str, _: bytes) -> Answer:
        if "/containers/create" in asked:
            return 201, {"Id": CONTAINER, "Warnings": []}, {}
        if asked.endswith("/start") or method == "DELETE":
            return 500, {"message": "no space left" if method == "POST" else "device or resource busy"}, {}
        return 200, [] if "containers/json" in asked else {"Id": CONTAINER, "Config": {"Tty": True}}, {}

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with answering(tmp_path / "docker.sock", answer), pytest.raises(Refused) as caught:
        engine.require().start(PLAN, {})
    (refusal,) = caught.value.refusals
    assert refusal.code == "NV703"
    assert "no space left" in refusal.found
