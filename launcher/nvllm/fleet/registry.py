"""A repository of an OCI registry, by the distribution API 1.1. No other module talks to a registry.

Nothing is asked of a registry but to keep bytes under their digest: what comes from one is hashed here, and what is
sent there has the digest that was computed here. https://github.com/opencontainers/distribution-spec has the API.
"""

from __future__ import annotations

import base64
import functools
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx2

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedFile
from nvllm.core.progress import Progress, Task
from nvllm.core.refusal import Refusal, Refused, collected, refuse, refuse_any
from nvllm.fleet.bounded import (
    LIMITS,
    BoundedClient,
    Pace,
    RegistryLimits,
    SlowError,
    at_most,
    for_seconds,
    question,
)
from nvllm.fleet.credentials import Credentials
from nvllm.layers.oci import INDEX, MANIFEST, Descriptor, sha256
from nvllm.sources.fetch import SERVER_ERROR, TRANSIENT, Answer, LargeError, Serial

T = TypeVar("T")

_AT_ONCE = 4
"""Blobs at once, as in `sources/fetch.py`."""
_ATTEMPTS = 5
"""The waits between so many are 7.5 s in all."""
BACKOFF = 0.5
"""Seconds before the second attempt, doubled before each further one: a registry that restarts takes a few."""
_PIECE = 64 << 20
"""Bytes of one request of an upload. After a failure the upload goes on behind the last byte that the registry has."""
_CHUNK = 1 << 20
_LARGEST = 1 << 40
"""Bytes of the largest blob that is asked for."""
ENTRIES = 1000
"""Descriptors in one list: engines take 128 layers, and nobody has to look at more that refer to one image."""

_FAILURES = (httpx2.HTTPError, httpx2.InvalidURL)
"""What the client raises: a connection that fails, redirects without end, a place that is no URL."""
_FINAL = (SlowError, LargeError)
"""What another attempt would only repeat."""

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"(?:(https?)://)?({_HOST})/({_PART}(?:/{_PART})*)(?:@(sha256:[0-9a-f]{{64}}))?")
_LOOPBACK = re.compile(r"(localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]+)?")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RepositoryName:
    """``host[:port]/path``, asked over SCHEME."""

    scheme: str
    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"

    @property
    def typed(self) -> str:
        """The repository as `parse` takes it, here and on another machine."""
        return str(self) if parse(str(self))[0] == self else f"{self.scheme}://{self}"

    @property
    def where(self) -> str:
        """The repository as the place of a refusal."""
        return f"registry {self.host}: {self.path}"

    @property
    def api(self) -> str:
        return f"{self.scheme}://{self.host}/v2/{self.path}"


def parse(text: str) -> tuple[RepositoryName, str | None]:
    """Return the repository that TEXT names, and the digest behind ``@``, if there is one.

    A registry is asked over HTTPS, one on loopback over HTTP, as Docker does; ``http://`` before the name asks another
    one over HTTP. Raises Refused NV108 for any other text, which is not shown if it may hold a password.
    """
    if "@" in (text.rpartition("@sha256:")[0] or text):  # what stands before it is not shown: it may be a password
        cure = "give them to docker login, and name the repository without them"
        raise refuse("NV108", "REPO", "a repository without user and password", "a text with @ in it", cure)
    match = _NAME.fullmatch(text)
    if match is None or len(text) > 400:
        expected = "host[:port]/path in lower case, and @sha256:... to pull"
        raise refuse("NV108", "REPO", expected, text[:200], "name one of that form: nvllm push HOST/PATH IMAGE")
    scheme, host, path, digest = match.groups()
    return RepositoryName(scheme or ("http" if _LOOPBACK.fullmatch(host) else "https"), host, path), digest


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes to send: a digest, a size, and the PATH of the file that has them, or the bytes themselves as DATA."""

    digest: str
    size: int
    path: Path | None = None
    data: bytes = b""

    @classmethod
    def of(cls, data: bytes) -> Blob:
        return cls(sha256(data), len(data), data=data)

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from START to END."""
        if self.path is None:
            yield self.data[start:end]
            return
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while start < end and (chunk := os.pread(descriptor, min(_CHUNK, end - start), start)):
                start += len(chunk)
                yield chunk
        finally:
            os.close(descriptor)


class _AgainError(Exception):
    """The registry did not do what it was asked to, and may do so later."""


class _Login(httpx2.Auth):
    """Answers a registry's challenge: by a token of the server that it names, or by user and password."""

    def __init__(self, name: RepositoryName, credentials: Credentials | None, limits: RegistryLimits) -> None:
        self._name = name
        self._credentials = credentials
        self._limits = limits
        self._header = ""
        self._lock = threading.Lock()

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
        own = httpx2.URL(self._name.api)
        if (request.url.scheme, request.url.host, request.url.port) != (own.scheme, own.host, own.port):
            yield request  # a place that the registry names gets no credentials
            return
        if self._header:
            request.headers["Authorization"] = self._header
        response = yield request
        if response.status_code != 401 or request.method == "PATCH":  # its body is gone; the caller tries again
            return
        with self._lock:
            self._header = self._answered(response.headers.get("WWW-Authenticate", ""))
        if self._header:
            request.headers["Authorization"] = self._header
            yield request

    def _answered(self, challenge: str) -> str:
        kind, _, rest = challenge.partition(" ")
        parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        basic = None
        if self._credentials is not None:
            basic = base64.b64encode(f"{self._credentials.user}:{self._credentials.secret}".encode()).decode()
        if kind.lower() == "basic":
            return f"Basic {basic}" if basic is not None else ""
        realm = parameters.get("realm", "")
        # A password goes over no weaker transport than the registry itself is asked over.
        if kind.lower() != "bearer" or urlsplit(realm).scheme not in {"https", self._name.scheme}:
            return ""
        asked = {name: parameters[name] for name in ("service", "scope") if name in parameters}
        headers = {"Authorization": f"Basic {basic}"} if basic is not None else {}
        with BoundedClient(self._limits) as client:
            answer = client.get(realm, params=asked, headers=headers)
        try:
            token = canonical.decode(answer.content if answer.status_code == 200 else b"{}")
        except ValueError:
            token = {}
        text = (token.get("token") or token.get("access_token")) if isinstance(token, dict) else None
        return f"Bearer {text}" if isinstance(text, str) else ""


@dataclass(eq=False)
class Repository:
    """The repository NAME, asked with CREDENTIALS if it wants any. PROGRESS shows what travels.

    LIMITS is what an answer may cost; the client holds every one to that.
    """

    name: RepositoryName
    credentials: Credentials | None
    progress: Progress
    limits: RegistryLimits = LIMITS
    client: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        login = _Login(self.name, self.credentials, self.limits)
        self.client = BoundedClient(self.limits, auth=login)

    # What the registry has

    def manifest(self, reference: str) -> bytes:
        """Return the manifest REFERENCE, a tag or a digest; one of a digest has exactly that digest.

        Raises Refused NV331 if there is none, and NV205 if it has other bytes.
        """
        data = self.find_manifest(reference)
        if data is None:
            raise self._refused(f"a manifest {reference}", "no such manifest")
        return data

    def find_manifest(self, reference: str) -> bytes | None:
        """Return the manifest REFERENCE as `manifest` does, or None if there is none."""
        url = f"{self.name.api}/manifests/{reference}"
        data = self._document(url, {"Accept": f"{MANIFEST}, {INDEX}"})
        if data is not None and DIGEST.fullmatch(reference) and sha256(data) != reference:
            raise self._other_bytes(reference, sha256(data))
        return data

    def document(self, blob: Descriptor, most: int | None = None) -> bytes:
        """Return BLOB, a document of at most MOST bytes, and of no more than the limits allow.

        Raises Refused NV331 if it is missing or larger, NV205 if it has other bytes.
        """
        most = min(most or self.limits.document, self.limits.document)
        data = self._document(f"{self.name.api}/blobs/{blob.digest}", {}, most)
        if data is None:
            raise self._refused(f"the blob {blob.digest}", "no such blob")
        if len(data) != blob.size or sha256(data) != blob.digest:
            raise self._other_bytes(f"{blob.digest}, {blob.size} bytes", f"{sha256(data)}, {len(data)} bytes")
        return data

    def referrers(self, digest: str, artifact_type: str) -> tuple[Descriptor, ...]:
        """Return what says that its subject is the manifest DIGEST, but for what is of another type than ARTIFACT_TYPE.

        By the API, or by the tag that stands in for it. Raises Refused NV331 for more than `ENTRIES`.
        """
        url = httpx2.URL(f"{self.name.api}/referrers/{digest}", params={"artifactType": artifact_type})
        index = self._document(str(url), {"Accept": INDEX})
        if index is None:
            index = self.find_manifest(digest.replace(":", "-"))
        listed = _objects_in(index or b"{}", "manifests")
        try:
            return _descriptors(
                [entry for entry in listed if entry.get("artifactType", artifact_type) == artifact_type]
            )
        except ValueError as error:
            raise self._refused("descriptors of what refers to it", str(error), self._look) from error

    # Sending

    def lacking(self, blobs: Sequence[Blob]) -> list[Blob]:
        """Return those of BLOBS that the registry lacks, each once."""
        different = {blob.digest: blob for blob in blobs}
        return [blob for digest, blob in different.items() if not self._tried(functools.partial(self._has, digest))]

    def push_blobs(self, blobs: Sequence[Blob]) -> int:
        """Send those of BLOBS that the registry lacks, several at a time; return how many bytes that were.

        Raises Refused NV331 for each answer of the registry by which it does not take some; once there is one, no
        further blob is begun. What it took stays there.
        """
        lacking = self.lacking(blobs)
        refusals: list[Refusal] = []
        if lacking:
            with self.progress.task(f"push to {self.name}", sum(blob.size for blob in lacking), "B") as task:
                counted, stop = Serial(task), threading.Event()
                with ThreadPoolExecutor(_AT_ONCE, "push") as pool:
                    for sent in [pool.submit(self._push_unless, stop, blob, counted) for blob in lacking]:
                        with collected(refusals):
                            sent.result()
        by_answer = {refusal.found: refusal for refusal in reversed(refusals)}  # one cause is one refusal
        refuse_any(by_answer.values())
        return sum(blob.size for blob in lacking)

    def push_manifest(self, reference: str, data: bytes) -> Descriptor:
        """Send the manifest DATA as REFERENCE, a tag or its digest, and return what names it.

        Raises Refused NV331 if the registry does not take it.
        """
        self._put(reference, data, MANIFEST)
        return Descriptor(MANIFEST, sha256(data), len(data))

    def push_referrer(self, data: bytes, subject: str, artifact_type: str) -> None:
        """Send the manifest DATA, of ARTIFACT_TYPE, whose subject is the manifest SUBJECT (a digest).

        A registry that does not look at subjects gets the tag that stands in for its list of referrers.
        """
        if self._put(sha256(data), data, MANIFEST):
            return
        tag = subject.replace(":", "-")
        before = self.find_manifest(tag)
        own: Json = {**Descriptor(MANIFEST, sha256(data), len(data)).document(), "artifactType": artifact_type}
        others = [entry for entry in _objects_in(before or b"{}", "manifests") if entry.get("digest") != sha256(data)]
        index: Json = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*others, own]}
        self._put(tag, canonical.encode(index), INDEX)

    def _put(self, reference: str, data: bytes, media_type: str) -> bool:
        """Send the manifest DATA as REFERENCE; return whether the registry says that it looked at its subject."""
        url = f"{self.name.api}/manifests/{reference}"

        def put() -> bool:
            answer = self.client.put(url, content=data, headers={"Content-Type": media_type})
            self.check(answer, f"the manifest {reference} taken", (201,))
            return "OCI-Subject" in answer.headers

        return self._tried(put)

    def _has(self, digest: str) -> bool:
        # A registry may keep blobs in another store, to which it redirects.
        answer = self.client.head(f"{self.name.api}/blobs/{digest}", follow_redirects=True)
        # 500: docker-registry, of a blob whose record a full disk has cut short. To send the blob again repairs it.
        if answer.status_code in {404, 500}:
            return False
        self.check(answer, f"whether there is a blob {digest}", (200,))
        return True

    def _push_unless(self, stop: threading.Event, blob: Blob, task: Task) -> None:
        """Send BLOB unless STOP is set, which this sets when it fails: the next one would wait as long for nobody."""
        if stop.is_set():
            return
        try:
            self._push(blob, task)
        except Refused:
            stop.set()
            raise

    def _push(self, blob: Blob, task: Task) -> None:
        """Send BLOB. An upload that breaks goes on where the registry says that it stopped."""
        upload, pace = _Upload(self, blob, task), Pace(self.limits)
        failures = furthest = 0
        while True:
            began = time.monotonic()
            try:
                upload.send()
            except (*_FAILURES, _AgainError) as error:
                advance = max(0, upload.offset - furthest)  # a registry may say that it has less again
                furthest += advance
                failures = 1 if advance else failures + 1
                slow = pace.count(advance, time.monotonic() - began)
                if failures == _ATTEMPTS or slow is not None or isinstance(error, _FINAL):
                    raise self._failed(f"the blob {blob.digest} taken", slow or error) from error
                time.sleep(BACKOFF * 2 ** (failures - 1))
            else:
                return

    # Asking

    def _document(self, url: str, headers: Mapping[str, str], most: int | None = None) -> bytes | None:
        """Return the document at URL, of at most MOST bytes, None if there is none."""
        extensions = at_most(most or self.limits.document)

        def get() -> bytes | None:
            answer = self.client.get(url, headers=dict(headers), follow_redirects=True, extensions=extensions)
            if answer.status_code == 404:
                return None
            self.check(answer, "a document", (200,))
            return answer.content

        return self._tried(get)

    def _tried(self, ask: Callable[[], T]) -> T:
        """Return what ASK returns, after several attempts if it fails by the connection or the registry's state."""
        with question(self.limits.seconds) as ends:
            for attempt in itertools.count(1):
                wait = BACKOFF * 2 ** (attempt - 1)
                try:
                    return ask()
                except (*_FAILURES, _AgainError) as error:
                    if attempt == _ATTEMPTS or isinstance(error, _FINAL) or time.monotonic() + wait > ends:
                        raise self._failed("an answer", error) from error
                    time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _failed(self, expected: str, error: Exception) -> Refused:
        """Return the refusal of what EXPECTED names, after the last attempt ended with ERROR."""
        if isinstance(error, LargeError):
            return self._refused("an answer of the size that a registry may give", str(error), self._look)
        if isinstance(error, SlowError):
            return self._refused(f"{expected} in time", str(error), self._look)
        kind = "" if isinstance(error, _AgainError) else f"{type(error).__name__}: "
        return self._refused(expected, f"{kind}{error}")

    @property
    def _look(self) -> str:
        return f"look at the registry {self.name.host}, or use another one"

    def check(self, answer: httpx2.Response, expected: str, good: Sequence[int]) -> None:
        """Raise unless the status of ANSWER is GOOD: _AgainError where later may be better, else Refused NV331."""
        status = answer.status_code
        if status in good:
            return
        problem = f"status {status}: {_words(answer.content)}".removesuffix(": ")
        if status >= SERVER_ERROR or status in TRANSIENT:
            raise _AgainError(problem)
        cure = f"docker login {self.name.host}" if status in {401, 403} else f"look at the registry {self.name.host}"
        raise self._refused(expected, problem, cure)

    def _refused(self, expected: str, answer: str, cure: str = "") -> Refused:
        cure = cure or "try again; what the registry has is not sent again"
        return refuse("NV331", self.name.where, expected, answer, cure)

    def _other_bytes(self, expected: str, offered: str) -> Refused:
        cure = "do not use this registry: it offers other bytes under a digest"
        return refuse("NV205", self.name.where, expected, offered, cure)


class _Upload:
    """An upload of BLOB, of which the registry has OFFSET bytes."""

    def __init__(self, repository: Repository, blob: Blob, task: Task) -> None:
        self._repository = repository
        self._blob = blob
        self._task = task
        self._location = ""
        self.offset = 0

    def send(self) -> None:
        """Begin or go on, and end. Raises httpx2.TransportError or _AgainError; then call it again."""
        if self._location:
            self._resume()
        if not self._location:
            self._began(self._ask("POST", f"{self._repository.name.api}/blobs/uploads/", (202,)))
        while self.offset < self._blob.size:
            self._piece(min(self.offset + _PIECE, self._blob.size))
        separator = "&" if urlsplit(self._location).query else "?"
        limits = self._repository.limits  # the registry hashes the whole blob before it answers
        patience = for_seconds(limits.seconds + self._blob.size / limits.hashed)
        self._ask("PUT", f"{self._location}{separator}digest={self._blob.digest}", (201,), patience)

    def _piece(self, end: int) -> None:
        start = self.offset
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(end - start),
            "Content-Range": f"{start}-{end - 1}",
        }
        client = self._repository.client
        answer = client.patch(self._location, content=self._blob.chunks(start, end), headers=headers)
        if answer.status_code in {401, 404, 416}:  # a token that ended, an upload that is gone, another offset
            self._location = self._location if answer.status_code == 401 else ""
            raise _AgainError(f"status {answer.status_code}")
        self._repository.check(answer, f"bytes of {self._blob.digest} taken", (202,))
        self._move(end)
        self._began(answer)

    def _resume(self) -> None:
        """Ask how much the registry has; start from the first byte if it has forgotten the upload."""
        answer = self._repository.client.get(self._location)
        if answer.status_code != 204:
            self._location = ""
            self._move(0)
            return
        last = re.fullmatch(r"(?:bytes=)?0-([0-9]{1,18})", answer.headers.get("Range", ""))
        # A registry cannot say that it has nothing: 0-0 is one byte, or none.
        received = int(last[1]) + 1 if last is not None and last[1] != "0" else 0
        self._move(min(received, self._blob.size))
        self._began(answer)

    def _ask(
        self, method: str, url: str, good: Sequence[int], extensions: Mapping[str, Any] | None = None
    ) -> httpx2.Response:
        client = self._repository.client
        answer = client.request(method, url, headers={"Content-Length": "0"}, extensions=dict(extensions or {}))
        if answer.status_code == 404 and self._location:
            self._location = ""
            self._move(0)
            raise _AgainError("the registry has forgotten the upload")
        self._repository.check(answer, f"an upload of {self._blob.digest}", good)
        return answer

    def _began(self, answer: httpx2.Response) -> None:
        location = answer.headers.get("Location", "")
        self._location = urljoin(f"{self._repository.name.api}/", location) if location else self._location
        if not self._location:
            raise _AgainError("no place for an upload")

    def _move(self, offset: int) -> None:
        self._task.advance(offset - self.offset)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class BlobSource:
    """The blobs of REPOSITORY as a source of files for `sources.fetch`, which hashes them while they come."""

    repository: Repository

    def locate(self, file: LockedFile) -> Sequence[str]:
        return [f"{self.repository.name.api}/blobs/sha256:{file.sha256}"]

    def archived(self, _file: LockedFile) -> Sequence[str]:
        return []

    def client(self) -> httpx2.Client:
        return self.repository.client

    def not_offered(self, file: LockedFile, answers: Sequence[Answer]) -> Refusal:
        problems = ", ".join(dict.fromkeys(answer.problem for answer in answers)) or "no answer"
        where = self.repository.name.where
        cure = "try again; what has come is not fetched again"
        if any(answer.final for answer in answers):
            cure = "push it again from a host that has it: nvllm push REPO IMAGE"
        return Refusal("NV331", where, f"the blob sha256:{file.sha256}", problems, cure)


def described(entry: object) -> Descriptor:
    """Return the descriptor in ENTRY, a part of a manifest. Raises ValueError if it is none."""
    if isinstance(entry, dict):
        kind, digest, size = entry.get("mediaType"), entry.get("digest"), entry.get("size")
        if isinstance(kind, str) and isinstance(digest, str) and DIGEST.fullmatch(digest) and _is_size(size):
            return Descriptor(kind, digest, size)
    raise ValueError("a descriptor without media type, digest, or size of a blob")


def _is_size(size: object) -> TypeGuard[int]:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _LARGEST


def layers_of(manifest: Json) -> tuple[Descriptor, ...]:
    """Return the descriptors of the layers of MANIFEST, none without a list of them. Raises ValueError for others."""
    listed = manifest.get("layers") if isinstance(manifest, dict) else None
    return _descriptors(listed) if isinstance(listed, list) else ()


def _descriptors(listed: Sequence[object]) -> tuple[Descriptor, ...]:
    """Return the descriptors LISTED. Raises ValueError for more than `ENTRIES`, and for what is none."""
    if len(listed) > ENTRIES:
        raise ValueError(f"{len(listed)} descriptors, more than {ENTRIES}")
    return tuple(described(entry) for entry in listed)


def _objects_in(document: bytes, name: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects in the list NAME of DOCUMENT, none if there is no such list."""
    try:
        value = canonical.decode(document)
    except ValueError:
        return ()
    listed = value.get(name) if isinstance(value, dict) else None
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else ()


def _words(body: bytes) -> str:
    """Return what a registry says in BODY, the answer to a request that it does not do."""
    messages = [str(error.get("message") or error.get("code")) for error in _objects_in(body, "errors")]
    return "; ".join(messages)[:300] or body.decode(errors="replace").strip()[:200]
