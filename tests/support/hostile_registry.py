"""A registry on loopback that means harm: each of its answers is written to the socket as a test says.

A real server, because what is tested is what arrives: bodies without end, heads that drip, bombs.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from nvllm.core.progress import Silent
from nvllm.fleet import registry
from nvllm.fleet.bounded import LIMITS, RegistryLimits
from nvllm.fleet.credentials import Credentials
from nvllm.fleet.registry import Repository

Answer: TypeAlias = Callable[[socket.socket, str], None]
"""Answers a request on a connection, given its method and path."""


def whole(status: str, body: bytes = b"", **headers: str) -> bytes:
    """Return an answer as it should be."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def head(status: str, *lines: str) -> bytes:
    """Return the head of an answer."""
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def plain(data: bytes) -> Answer:
    """Answer everything with DATA."""
    return lambda connection, _: connection.sendall(data)


def endless(begin: bytes, piece: bytes) -> Answer:
    """Answer everything with BEGIN, and then PIECE for ever, as fast as it goes."""

    def answer(connection: socket.socket, _: str) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(piece)

    return answer


def dripping(begin: bytes, data: bytes, pause: float = 0.05) -> Answer:
    """Answer everything with BEGIN, and then DATA, again and again, a byte after each PAUSE."""

    def answer(connection: socket.socket, _: str) -> None:
        connection.sendall(begin)
        while True:
            for number in range(len(data)):
                time.sleep(pause)
                connection.sendall(data[number : number + 1])

    return answer


@dataclass
class Hostile:
    """The registry at HOST. ASKED is what it was asked; SENT counts the bytes that came to it."""

    host: str
    asked: list[str] = field(default_factory=list)
    sent: int = 0

    def repository(self, limits: RegistryLimits = LIMITS, credentials: Credentials | None = None) -> Repository:
        name, _ = registry.parse(f"{self.host}/team/nvllm")
        return Repository(name, credentials, Silent(), limits)


@contextlib.contextmanager
def running(answer: Answer, *, reads: bool = True) -> Iterator[Hostile]:
    """Run a registry that gives ANSWER to each request. If it READS, it takes the body of a request first."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the client has enough
                while self._request():
                    pass

        def _request(self) -> bool:
            data = b""
            while b"\r\n\r\n" not in data:
                more = self.request.recv(1 << 16)
                if not more:
                    return False
                data += more
            lines, _, body = data.partition(b"\r\n\r\n")
            first, *headers = lines.decode().split("\r\n")
            sizes = [int(one.partition(":")[2]) for one in headers if one.lower().startswith("content-length:")]
            left = (sizes[0] if sizes and reads else 0) - len(body)
            while left > 0:
                left -= len(self.request.recv(1 << 16))
            asked = " ".join(first.split(" ")[:2])
            hostile.asked.append(asked)
            hostile.sent += sizes[0] if sizes else 0
            answer(self.request, asked)
            return True

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            """A client that goes away is what the tests want."""

    with Server(("127.0.0.1", 0), Handler) as server:
        hostile = Hostile(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield hostile
        finally:
            server.shutdown()
            thread.join()
