"""Hosts on loopback that do not answer, or late."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress


@contextmanager
def hole() -> Iterator[str]:
    """Yield the address, host:port, of a socket whose backlog is full: the kernel drops what wants to connect."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def slow(seconds: float) -> Iterator[str]:
    """Yield the address of a server that takes a connection at once, and answers each request after SECONDS."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer(taken: socket.socket) -> None:
            with taken, suppress(OSError):
                taken.recv(65536)
                time.sleep(seconds)
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlate")

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=[listening.accept()[0]], daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
