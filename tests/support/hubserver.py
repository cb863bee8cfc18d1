"""A small hub on loopback, for tests with the real client: what it asks of a hub, and what can go wrong there.

The hub is out of reach where the tests run, and would not fail when a test wants it to. So the world ends at
the socket: nvllm, the real client, HTTP and the cache on disk are what they always are, and only what answers
is ours. It knows model information with file hashes, and downloads with redirects, as far as the client needs.

Import this before the client: some of its settings are read once, from the environment. Xet transfers are
off, because their protocol talks to further servers; the hub then serves the same files over plain HTTP.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"  # the token of whoever runs the tests is not sent here
for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.pop(name, None)

LOOPBACK = "127.0.0.1,localhost"
REPO = "acme/tiny"
WEIGHTS = "model.safetensors"
FIRST = {".gitattributes": b"*.safetensors filter=lfs\n", "config.json": b'{"layers": 1}\n', WEIGHTS: b"\x01" * 4096}
SECOND = {**FIRST, "config.json": b'{"layers": 2}\n', WEIGHTS: b"\x02" * 4096}


def git_hash(content: bytes) -> str:
    """Return the name that git gives to CONTENT."""
    return hashlib.sha1(b"blob " + str(len(content)).encode() + b"\0" + content).hexdigest()


@dataclass
class Hub:
    """One repository, REPO, whose state tests change while the server runs."""

    commits: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """``METHOD path`` of everything that was asked, in order."""
    tokens: set[str] = field(default_factory=set)
    """Every token that was sent."""
    endpoint: str = ""
    missing: bool = False
    gated: bool = False
    broken: bool = False
    truncated: set[str] = field(default_factory=set)
    """Files of which only the first half is sent, though the whole was announced."""
    spoiled: set[str] = field(default_factory=set)
    """Files that are sent whole, with other bytes."""
    next: Mapping[str, bytes] | None = None
    """What the main branch moves to right after the next answer about it."""

    def push(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Commit FILES, move BRANCH there, and return the commit."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit

    def fetch_unpinned(self, path: str, cache: Path) -> None:
        """Download PATH to CACHE as someone does who names no revision, which leaves a ``refs/main``."""
        from huggingface_hub import hf_hub_download  # here, because the settings above must come first

        hf_hub_download(REPO, path, cache_dir=cache, endpoint=self.endpoint)

    def asked(self, text: str) -> int:
        """Return how many requests held TEXT."""
        return sum(text in request for request in self.requests)


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """Run a hub whose main branch holds FILES; leaving closes its port."""
    hub = Hub()
    hub.push(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with mock.patch.dict(os.environ, {"NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}):
            yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers in HTTP/1.0, one request a connection, so that a closed server is a silent one at once."""

    def __init__(self, hub: Hub, *arguments: Any) -> None:
        self.hub = hub
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {self.path}")
        self.hub.tokens.add(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if self.hub.broken:
            self._send(500, {}, b"")
        elif self.hub.gated:
            self._send(403, {"X-Error-Code": "GatedRepo"}, b"")
        elif self.hub.missing or REPO not in path:
            self._send(404, {"X-Error-Code": "RepoNotFound"}, b"")
        elif match := re.fullmatch(f"/api/models/{REPO}(?:/revision/(.+))?", path):
            self._information(match[1] or "main")
        elif match := re.fullmatch(f"/{REPO}/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[2])
        elif match := re.fullmatch(f"/storage/{REPO}/([^/]+)/(.+)", path):
            self._content(self.hub.commits[match[1]][match[2]], match[2], {})

    def _commit(self, revision: str) -> str | None:
        commit = self.hub.branches.get(revision, revision)
        if commit in self.hub.commits:
            return commit
        self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"")
        return None

    def _information(self, revision: str) -> None:
        commit = self._commit(revision)
        if commit is None:
            return
        siblings: list[dict[str, object]] = []
        for path, content in self.hub.commits[commit].items():
            sibling: dict[str, object] = {"rfilename": path}
            if "blobs=true" in self.path.lower():
                sibling |= {"size": len(content), "blobId": git_hash(content)}
                if path.endswith(".safetensors"):
                    large = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
                    sibling["lfs"] = large
            siblings.append(sibling)
        body = json.dumps({"_id": "1", "id": REPO, "sha": commit, "siblings": siblings}).encode()
        if self.hub.next is not None:
            self.hub.push(self.hub.next)
            self.hub.next = None
        self._send(200, {"Content-Type": "application/json"}, body)

    def _resolve(self, revision: str, path: str) -> None:
        commit = self._commit(revision)
        if commit is None:
            return
        if path not in self.hub.commits[commit]:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"")
            return
        content = self.hub.commits[commit][path]
        headers = {"X-Repo-Commit": commit}
        if not path.endswith(".safetensors"):
            self._content(content, path, {**headers, "ETag": f'"{git_hash(content)}"'})
            return
        # Large files lie on another host: the client learns hash and size here, and is sent on, without its token.
        headers["X-Linked-Etag"] = f'"{hashlib.sha256(content).hexdigest()}"'
        headers["X-Linked-Size"] = str(len(content))
        storage = self.hub.endpoint.replace("127.0.0.1", "localhost")
        headers["Location"] = f"{storage}/storage/{REPO}/{commit}/{path}"
        self._send(302, headers, b"")

    def _content(self, content: bytes, path: str, headers: Mapping[str, str]) -> None:
        if self.command == "GET" and path in self.hub.spoiled:
            content = b"\xff" * len(content)
        if self.command == "GET" and path in self.hub.truncated:
            content = content[: len(content) // 2]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked is None:
            self._send(200, {**headers, "Accept-Ranges": "bytes"}, content)
            return
        start = int(asked[1])
        shown = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206, {**headers, "Content-Range": shown}, content[start:])

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
