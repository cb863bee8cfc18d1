"""The edge to the engine, as far as it can be shown without one: what is sent, and what silence comes to."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from nvllm import engine
from nvllm.engine import Engine
from nvllm.host import EngineProblem
from nvllm.refusal import Refused

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
