"""A registry on loopback that keeps blobs and manifests in memory and misbehaves as a test wants.

It stands in for a real one where a test needs a connection that breaks at a certain byte; `tests/fleet` asks one.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from nvllm.core.progress import Silent
from nvllm.fleet import registry
from nvllm.fleet.credentials import Credentials
from nvllm.fleet.registry import Repository
from support.loopback import basic

NAME = "team/nvllm"


@dataclass
class Registry:
    """What it has: BLOBS and MANIFESTS, by digest and tag, and UPLOADS, by path, that did not end."""

    url: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    """After how many bytes each of the first pieces of an upload breaks; what came until then is kept."""
    forgets: bool = False
    """Whether a broken upload is forgotten."""
    failures: int = 0
    """How many of the first answers are 503."""
    knows_subjects: bool = False
    credentials: str | None = None
    """``user:password``, for which the token server gives the token without which every answer is 401."""
    token: bytes = b'{"token": "sesame"}'
    """What the token server answers."""
    realm: str = ""
    """Where the challenge sends a client; empty: to this registry."""
    received: int = 0
    """Bytes of blobs that came."""
    asked: list[str] = field(default_factory=list)

    def repository(self, credentials: Credentials | None = None) -> Repository:
        name, _ = registry.parse(f"{self.url.removeprefix('http://')}/{NAME}")
        return Repository(name, credentials, Silent())

    def referrers(self, digest: str) -> list[dict[str, object]]:
        found = []
        for name, data in self.manifests.items():
            document = json.loads(data)
            if name.startswith("sha256:") and document.get("subject", {}).get("digest") == digest:
                entry = {"mediaType": document["mediaType"], "digest": name, "size": len(data)}
                kind = {"artifactType": document["artifactType"]} if "artifactType" in document else {}
                found.append(entry | kind)
        return found


class _Handler(BaseHTTPRequestHandler):
    """Answers for the registry that its server keeps."""

    protocol_version = "HTTP/1.1"

    @property
    def kept(self) -> Registry:
        assert isinstance(self.server, _Server)
        return self.server.kept

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", /, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refused(self) -> bool:
        """Answer a request that is not to be served, and return whether it was one."""
        path = urlsplit(self.path).path
        self.kept.asked.append(f"{self.command} {path}")
        length = int(self.headers.get("Content-Length", "0"))
        if path == "/token":
            good = self.kept.credentials is None or self.headers.get("Authorization") == basic(self.kept.credentials)
            self.answer(200, self.kept.token) if good else self.answer(401)
        elif self.kept.failures > 0:
            self.kept.failures -= 1
            self.rfile.read(length)
            self.answer(503)
        elif self.kept.credentials is not None and self.headers.get("Authorization") != "Bearer sesame":
            self.rfile.read(length)
            realm = self.kept.realm or f"{self.kept.url}/token"
            self.answer(401, WWW_Authenticate=f'Bearer realm="{realm}",service="here",scope="all"')
        else:
            return False
        return True

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.refused():
            return
        path = urlsplit(self.path).path
        kind, _, name = path.removeprefix(f"/v2/{NAME}/").partition("/")
        if path in self.kept.uploads:
            self.answer(204, Location=path, Range=f"0-{max(0, len(self.kept.uploads[path]) - 1)}")
        elif kind == "referrers" and self.kept.knows_subjects:
            self.answer(200, json.dumps({"manifests": self.kept.referrers(name)}).encode())
        else:
            table = {"blobs": self.kept.blobs, "manifests": self.kept.manifests}.get(kind, {})
            found = table.get(name)
            start = int(re.sub(r"\D", "", self.headers.get("Range", "0")) or 0)
            said = (404, b"{}") if found is None else (206 if start else 200, found[start:])
            self.answer(*said)

    def do_POST(self) -> None:
        if not self.refused():
            path = f"/v2/{NAME}/blobs/uploads/{uuid.uuid4()}"
            self.kept.uploads[path] = b""
            self.answer(202, Location=path, Range="0-0")

    def do_PATCH(self) -> None:
        if self.refused():
            return
        path, length = urlsplit(self.path).path, int(self.headers["Content-Length"])
        start = int(self.headers["Content-Range"].partition("-")[0])
        if start != len(self.kept.uploads.get(path, b"")):
            self.rfile.read(length)
            self.answer(416)
            return
        cut = self.kept.cuts.pop(0) if self.kept.cuts else None
        data = self.rfile.read(length if cut is None else min(cut, length))
        self.kept.received += len(data)
        self.kept.uploads[path] += data
        if cut is None:
            self.answer(202, Location=path, Range=f"0-{len(self.kept.uploads[path]) - 1}")
            return
        if self.kept.forgets:
            del self.kept.uploads[path]
        self.close_connection = True
        self.connection.close()

    def do_PUT(self) -> None:
        if self.refused():
            return
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if parts.path in self.kept.uploads:
            whole = self.kept.uploads.pop(parts.path) + data
            digest = parse_qs(parts.query)["digest"][0]
            if digest != "sha256:" + hashlib.sha256(whole).hexdigest():
                self.answer(400, b'{"errors": [{"code": "DIGEST_INVALID", "message": "other bytes"}]}')
                return
            self.kept.blobs[digest] = whole
            self.answer(201)
            return
        name = parts.path.removeprefix(f"/v2/{NAME}/manifests/")
        self.kept.manifests[name] = self.kept.manifests["sha256:" + hashlib.sha256(data).hexdigest()] = data
        subject = {"OCI_Subject": "here"} if self.kept.knows_subjects and b'"subject"' in data else {}
        self.answer(201, **subject)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, kept: Registry) -> None:
        self.kept = kept
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: object) -> None:
        """A client that goes away in the middle is what some tests want."""


@contextmanager
def running() -> Iterator[Registry]:
    """Run a registry for the duration of the context."""
    kept = Registry()
    server = _Server(kept)
    kept.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
