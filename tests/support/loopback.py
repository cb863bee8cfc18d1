"""A small HTTP server on loopback whose files misbehave as a test wants, and which counts what it served."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from nvllm.sources import fetch


@dataclass
class Page:
    """What one path answers."""

    body: bytes
    status: int = 200
    ranges: bool = True
    cut_after: int | None = None
    """Close the connection after so many bytes of each answer."""
    failures: int = 0
    """How many of the first answers are 503."""
    pace: float = 0.0
    """Seconds to wait before each 64 KiB."""
    content_type: str = "application/octet-stream"


@dataclass
class Served:
    """One answer: which path, from which byte on, how many bytes."""

    path: str
    start: int
    amount: int = 0


@dataclass
class Site:
    """The running server: PAGES by path may be changed at any time; RECORD holds what it answered."""

    url: str = ""
    pages: dict[str, Page] = field(default_factory=dict)
    record: list[Served] = field(default_factory=list)
    credentials: str | None = None
    """The user and password, ``user:password``, without which every answer to GET is 401."""

    @property
    def served(self) -> list[tuple[str, int, int]]:
        """Return path, first byte and number of bytes of each answer."""
        return [(served.path, served.start, served.amount) for served in self.record]

    def bytes_of(self, path: str) -> int:
        return sum(amount for served, _, amount in self.served if served == path)

    def index(self, project: str, files: dict[str, bytes], *, hashes: bool = True) -> str:
        """Offer FILES of PROJECT as a simple index does, and return the index's URL."""
        links = []
        for name, body in files.items():
            self.pages[f"/files/{name}"] = Page(body)
            fragment = f"#sha256={hashlib.sha256(body).hexdigest()}" if hashes else ""
            links.append(f'<a href="/files/{name}{fragment}">{name}</a>')
        html = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
        self.pages[f"/simple/{project}/"] = Page(html.encode(), content_type="text/html")
        return f"{self.url}/simple"


def basic(credentials: str) -> str:
    """Return the header by which a client sends CREDENTIALS."""
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


@contextmanager
def serving() -> Iterator[Site]:
    """Run a site for the duration of the context."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        # What is no HTTP, such as the hello of TLS, is answered in HTTP all the same: engines then ask without TLS.
        default_request_version = "HTTP/1.0"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            page = site.pages.get(unquote(self.path), Page(b"", 404))
            self.send_response(page.status)
            self.send_header("Content-Length", str(len(page.body)))
            self.send_header("Content-Type", page.content_type)
            self.end_headers()

        def do_GET(self) -> None:
            page = site.pages.get(unquote(self.path), Page(b"no such page", 404))
            if page.failures > 0:
                page.failures -= 1
                page = Page(b"later", 503)
            if site.credentials is not None and self.headers.get("Authorization") != basic(site.credentials):
                page = Page(b"", 401)
            wanted = self.headers.get("Range")
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and page.ranges else 0
            body = page.body[start:]
            self.send_response(206 if start else page.status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", page.content_type)
            self.end_headers()
            body = body if page.cut_after is None else body[: page.cut_after]
            served = Served(unquote(self.path), start)
            if page.status == 200:
                site.record.append(served)
            try:
                for begin in range(0, len(body), 65536):
                    time.sleep(page.pace)
                    piece = body[begin : begin + 65536]
                    # Counted before it is sent: whoever has received it may look at once.
                    served.amount += len(piece)
                    self.wfile.write(piece)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site that is reached without a proxy, and tried again at once."""
    monkeypatch.setattr(fetch, "BACKOFF", 0.001)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as running:
        yield running
