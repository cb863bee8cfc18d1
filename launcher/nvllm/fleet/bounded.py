"""The HTTP client for registries: what one may cost in seconds and bytes is decided here, for every answer.

A registry may be broken or hostile, and so may what it redirects to and the server that gives its tokens. Whoever asks
one by `BoundedClient` gets an answer within `RegistryLimits`, or an httpx2.HTTPError.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx2

from nvllm.sources.fetch import BoundedStream

CONNECT = 10.0
"""Seconds in which a host must take a connection."""
_MOST, _SECONDS, _BLOB = "nvllm.most", "nvllm.seconds", "nvllm.blob"
_AGAIN = 0.05
"""Seconds after which connections that came up since are ended too."""


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """What a registry may cost."""

    seconds: float = 30.0
    """For the answers to one question, with redirects, tokens and further attempts; no blob counts here."""
    document: int = 4 << 20
    """Bytes of one answer that is no blob: registries take no larger manifests."""
    least: int = 1 << 20
    """Bytes of a blob that must travel in each WINDOW, also if several attempts share it."""
    window: float = 60.0
    hashed: float = 10e6
    """Bytes of a blob for which a registry gets one second more when its upload ends: it reads all of them again."""


LIMITS = RegistryLimits()
"""The limits that count unless somebody names others."""


class SlowError(httpx2.TimeoutException):
    """A registry took longer than it may; another attempt would cost as much again."""


_ENDS: ContextVar[float] = ContextVar("_ENDS")
"""When the time for the question that this thread asks is over, by time.monotonic()."""


@contextlib.contextmanager
def question(seconds: float) -> Iterator[float]:
    """Bound all that is asked within the context to SECONDS together; yield when they end, by time.monotonic().

    A question within another one ends with it.
    """
    ends = min(time.monotonic() + seconds, _ENDS.get(float("inf")))
    token = _ENDS.set(ends)
    try:
        yield ends
    finally:
        _ENDS.reset(token)


class Pace:
    """How fast a blob travels, over all attempts: at least LIMITS.least bytes in each LIMITS.window."""

    def __init__(self, limits: RegistryLimits) -> None:
        self._limits = limits
        self._seconds = 0.0
        self._amount = 0

    def count(self, amount: int, seconds: float) -> SlowError | None:
        """Count AMOUNT bytes that travelled in SECONDS; return an error if they are too few."""
        self._amount += amount
        self._seconds += seconds
        if self._amount >= self._limits.least:
            self._seconds, self._amount = 0.0, 0
        elif self._seconds > self._limits.window:
            problem = f"{self._amount} bytes of a blob in {self._seconds:.0f} s"
            return SlowError(f"{problem}; {self._limits.least} are the least in {self._limits.window:.0f} s")
        return None


class BoundedClient(httpx2.Client):
    """Asks registries within LIMITS. Safe to use from several threads.

    An answer that is streamed is a blob. Every other answer is read whole, and so is each redirect and challenge.
    """

    def __init__(self, limits: RegistryLimits, **options: Any) -> None:
        super().__init__(
            timeout=httpx2.Timeout(limits.seconds, connect=min(CONNECT, limits.seconds)),
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [self._bound]},
            **options,
        )
        self._limits = limits
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._paces: dict[str, Pace] = {}

    def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send REQUEST. Raises SlowError or LargeError for an answer beyond the limits.

        A body that is sent must travel as a blob does. If the time is over, every connection of this client is ended,
        also those that other threads use: they ask again.
        """
        own, limits = dict(request.extensions), self._limits
        seconds = own.get(_SECONDS, limits.seconds)
        own |= {"trace": self._traced, "timeout": {**own["timeout"], "read": seconds}}
        if stream:
            own[_BLOB] = self._paces.setdefault(str(request.url), Pace(limits))
        request.extensions = own
        with question(seconds) as ends, _Watch(ends, self._end) as watch:
            if isinstance(request.stream, httpx2.SyncByteStream):
                request.stream = _Sent(request.stream, watch, limits)
            try:
                response = super().send(request, stream=stream, **options)
            except httpx2.TransportError as error:
                if watch.over:
                    raise SlowError(f"none that was whole after {watch.seconds:.0f} s") from error
                raise
        if watch.over:  # what came may be cut short
            response.close()
            raise SlowError(f"none that was whole after {watch.seconds:.0f} s")
        return response

    def _traced(self, event: str, details: Mapping[str, Any]) -> None:
        """Remember the socket of each connection that comes up."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            with self._lock:
                self._sockets.add(details["return_value"].get_extra_info("socket"))

    def _end(self) -> None:
        """End every connection, so that whoever waits for a byte of one waits no longer."""
        with self._lock:
            connections = list(self._sockets)
        for connection in connections:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def _bound(self, response: httpx2.Response) -> None:
        """Bound the body of RESPONSE; redirects and challenges come here too."""
        response.headers.pop("Content-Encoding", None)  # none was asked for, and to decode one may cost gigabytes
        assert isinstance(response.stream, httpx2.SyncByteStream)
        extensions = response.request.extensions
        if _BLOB in extensions and response.is_success:
            response.stream = _Blob(response.stream, extensions[_BLOB])
        else:
            response.stream = BoundedStream(response.stream, extensions.get(_MOST, self._limits.document))


def at_most(size: int) -> dict[str, Any]:
    """Return the extensions of a request whose answer has SIZE bytes at most."""
    return {_MOST: size}


def for_seconds(seconds: float) -> dict[str, Any]:
    """Return the extensions of a request whose answer may take SECONDS."""
    return {_SECONDS: seconds}


class _Watch:
    """Calls END when the time ENDS (by time.monotonic()) has come, until the context ends. OVER says whether it did."""

    def __init__(self, ends: float, end: Callable[[], None]) -> None:
        self.seconds = ends - time.monotonic()
        self.ends = ends
        self.over = False
        self._end = end
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _wait(self) -> None:
        while not self._left.wait(max(_AGAIN if self.over else 0.0, self.ends - time.monotonic())):
            if time.monotonic() >= self.ends:  # else more of a body has travelled
                self.over = True
                self._end()


class _Sent(httpx2.SyncByteStream):
    """The body STREAM of a request. WATCH waits as long as it travels, and then for the answer."""

    def __init__(self, stream: httpx2.SyncByteStream, watch: _Watch, limits: RegistryLimits) -> None:
        self._stream = stream
        self._watch = watch
        self._limits = limits

    def __iter__(self) -> Iterator[bytes]:
        left = 0
        for chunk in self._stream:
            if chunk and left <= 0:
                left = self._limits.least
                self._watch.ends = time.monotonic() + self._limits.window
            yield chunk
            left -= len(chunk)
        if left:  # there was a body
            self._watch.ends = time.monotonic() + self._watch.seconds

    def close(self) -> None:
        self._stream.close()


class _Blob(httpx2.SyncByteStream):
    """The body STREAM of a blob, which comes at PACE."""

    def __init__(self, stream: httpx2.SyncByteStream, pace: Pace) -> None:
        self._stream = stream
        self._pace = pace

    def __iter__(self) -> Iterator[bytes]:
        chunks = iter(self._stream)
        while True:
            began = time.monotonic()  # what the reader does in between is not the registry's time
            chunk = b""
            try:
                chunk = next(chunks)
            except StopIteration:
                return
            finally:
                slow = self._pace.count(len(chunk), time.monotonic() - began)
            if slow is not None:
                raise slow
            yield chunk

    def close(self) -> None:
        self._stream.close()
