"""A container engine as far as a test says what it answers, on a socket. The client that asks is the real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from urllib.parse import unquote

Answer = tuple[int, object, dict[str, str]]
"""Status, body (JSON, or bytes as they are), and further headers."""


@contextmanager
def answering(path: Path, answer: Callable[[str, str, bytes], Answer]) -> Iterator[None]:
    """Serve on the socket PATH what ANSWER says to method, path and body, after what every client asks first."""

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "a client"  # the socket's own has no address

        def log_message(self, *_: object) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers["Transfer-Encoding"] != "chunked":
                return self.rfile.read(int(self.headers["Content-Length"] or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            return body

        def _answer(self) -> None:
            sent = self._body()
            document: object
            headers: Mapping[str, str] = {}
            if self.path.endswith(("/version", "/_ping")):
                status, document = 200, {"ApiVersion": "1.41", "Version": "28.0"}
            else:
                status, document, headers = answer(self.command, unquote(self.path), sent)
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the names that http.server calls

    server = ThreadingUnixStreamServer(str(path), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
