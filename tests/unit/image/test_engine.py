"""The edge to the engine, as far as it can be shown without one: what is sent, and what silence comes to."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import pytest

from nvllm.core.plan import Workbench
from nvllm.core.refusal import Refused
from nvllm.host.facts import EngineProblem
from nvllm.image import engine
from nvllm.image.engine import Engine
from plansamples import PLAN

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

    The client is the real one: what it adds to a request by itself is what is looked for.
    """
    made: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "a client"  # the socket's own has no address

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, document: object, headers: dict[str, str] | None = None) -> None:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path.endswith("/version"):
                self._answer(200, {"ApiVersion": "1.41"})
            elif "/archive?" in self.path:
                self._answer(200, TAR, {"X-Docker-Container-Path-Stat": "e30="})
            elif "/logs?" in self.path:
                self._answer(200, b"")
            else:
                one = {"Id": CONTAINER, "Config": {"Tty": True}}
                self._answer(200, [] if re.search(r"containers/json", self.path) else one)

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if "/containers/create" in self.path:
                made.append(json.loads(sent))
                self._answer(201, {"Id": CONTAINER, "Warnings": []})
            else:
                self._answer(200, {"StatusCode": 0})

        def do_DELETE(self) -> None:
            self._answer(200, b"")

    server = ThreadingUnixStreamServer(str(path), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


CREATES: dict[str, Callable[[Engine], object]] = {
    "a launch plan": lambda held: held.start(PLAN, {}),
    "a workbench": lambda held: held.start_workbench(Workbench(PLAN, "/cache"), {}),
    "a tool": lambda held: held.run_tool("sha256:1", ["ls"], "/out", "1:1", 9),
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
