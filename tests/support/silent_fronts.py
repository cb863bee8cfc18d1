"""Front ends that answer nothing, each on a port of 127.0.0.1 for the duration of a context."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager


def _listener(backlog: int, address: tuple[str, int] = ("127.0.0.1", 0)) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(backlog)
    return listener


@contextlib.contextmanager
def stopped() -> Iterator[int]:
    """A process that was stopped: the kernel takes connections for it, and nothing answers."""
    with _listener(128) as listener:
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    """Nobody listens, as after the death of what published the port."""
    with _listener(1) as listener:
        port = int(listener.getsockname()[1])
    yield port


@contextlib.contextmanager
def full() -> Iterator[int]:
    """The accept queue is full of connections that say nothing, so that the kernel takes no further one."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listener(0))
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield int(address[1])


@contextlib.contextmanager
def _answering(data: bytes, address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[int]:
    with _listener(16, address) as listener:
        over = threading.Event()

        def accept() -> None:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                while not over.is_set():
                    connection = stack.enter_context(listener.accept()[0])
                    connection.sendall(data)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def half() -> AbstractContextManager[int]:
    """It begins an answer and never ends it."""
    return _answering(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")


def noise() -> AbstractContextManager[int]:
    """Something else than HTTP has the port."""
    return _answering(b"220 mail.example ESMTP\r\n\r\n")


def refusing() -> AbstractContextManager[int]:
    """Something else that speaks HTTP has the port."""
    return _answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def healthy_at(host: str, port: int) -> AbstractContextManager[int]:
    """PORT of the loopback address HOST answers every request, as a container does at its own address."""
    return _answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", (host, port))


WAYS: Mapping[str, Callable[[], AbstractContextManager[int]]] = {
    "stopped": stopped,
    "nobody listens": nobody,
    "full accept queue": full,
    "half an answer": half,
    "not HTTP": noise,
    "another server": refusing,
}
