"""NV515, engine refused: the engine answers a request with an error; it is reached, and says itself what is wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from nvllm.core.refusal import Refused
from nvllm.engine import engine
from support import engine_socket


class Full(BaseHTTPRequestHandler):
    """An engine that answers who it is, and everything else with the error of a full disk; a real one is not filled."""

    def address_string(self) -> str:
        return "a client"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        well = self.path.endswith(("/version", "/_ping"))
        body = b'{"ApiVersion": "1.41"}' if well else b'{"message": "write /var/lib/docker: no space left on device"}'
        self.send_response(200 if well else 500)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingUnixStreamServer(str(tmp_path / "docker.sock"), Full)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    yield
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.usefixtures("full")
def test_what_the_engine_says_is_what_is_said() -> None:
    held = engine.require()
    with pytest.raises(Refused) as caught:
        held.containers()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV515", "docker engine")
    assert refusal.found == "500: write /var/lib/docker: no space left on device"


@pytest.mark.parametrize("path", ["/version", "/_ping"])
def test_an_engine_that_answers_with_an_error_at_once_is_not_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    class Failing(Full):
        def do_GET(self) -> None:
            if self.path.endswith(path):
                self.path = "/other"
            super().do_GET()

    server = ThreadingUnixStreamServer(str(tmp_path / "docker.sock"), Failing)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(Refused) as caught:
        engine.require()
    server.shutdown()
    server.server_close()
    thread.join()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV515", "docker engine")
    assert refusal.found == "500: write /var/lib/docker: no space left on device"


@pytest.mark.parametrize("reference", ["../containers/json", "a/../../x", "/x", "", "a b", "a//b", "a/"])
def test_what_is_no_reference_is_asked_of_no_engine(full: None, reference: str) -> None:
    assert engine.require().image(reference) is None


@pytest.mark.parametrize("body", [b"[" * 20_000, b"[5]", b'[{"Id": "1", "Labels": ["x"]}]', b'{"a": 1}'])
def test_an_answer_of_another_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with engine_socket.answering(tmp_path / "docker.sock", lambda *_: (200, body, {})):
        held = engine.require()
        with pytest.raises(Refused) as caught:
            held.containers()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV515", "docker engine")
    assert refusal.found.startswith("an answer of another form: ")
