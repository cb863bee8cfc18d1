"""Fetching locked files into the content store: verified, resumable, four at a time."""

from __future__ import annotations

import errno
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

import filelock
import httpx2

from nvllm.core.canonical import sha256_file
from nvllm.core.lock import LockedFile
from nvllm.core.paths import ensure
from nvllm.core.progress import Progress, Task
from nvllm.core.refusal import Refusal, Refused, collected, refuse, refuse_any
from nvllm.sources.client import SilentHostError
from nvllm.sources.store import Store

_AT_ONCE = 4
"""Files at once. One stream from an index seldom fills a fast line; many are taken for abuse by some."""
_ATTEMPTS = 3
"""Failures in a row that end a download. One that brought bytes begins the count again: some servers close early."""
_RESTARTS = 2
"""How often a file may be begun again because what came in parts has another sha256."""
BACKOFF = 0.5  # seconds before the second attempt; doubled before the third
NOTICE = 3.0
"""Seconds after which the user hears what nvllm waits for."""
_CHUNK = 1 << 18

_OK, _PARTIAL_CONTENT, SERVER_ERROR = 200, 206, 500
TRANSIENT = frozenset({408, 425, 429})  # timeout, too early, too many requests: the server asks for another attempt

OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError, RecursionError, AssertionError)
"""What the clients of indexes and hubs raise for an answer of another form than they expect; they check none.

The last is how the standard library's parser of HTML says it."""

PAGE = 64 << 20
"""Most bytes of a page: the largest ones of PyPI have 2 MB."""


class LargeError(httpx2.DecodingError):
    """An answer has more bytes than it may."""


class BoundedStream(httpx2.SyncByteStream):
    """The STREAM of an answer up to MOST bytes. Raises LargeError for more."""

    def __init__(self, stream: httpx2.SyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise LargeError(f"more than {self._most} bytes")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def bound(response: httpx2.Response) -> None:
    """Bound the page that RESPONSE brings, an event hook for pages that were asked for without a content coding.

    Raises httpx2.DecodingError for one with a coding all the same, which could make gigabytes of a kilobyte.
    """
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise httpx2.DecodingError("a page with a content coding, which was not asked for")
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = BoundedStream(response.stream, PAGE)


class Source(Protocol):
    """Where files come from: the configured indexes and mirrors. Used by several threads at once."""

    def locate(self, file: LockedFile) -> Sequence[str]:
        """Return the URLs that may offer FILE, best first.

        Raises Refused NV205 or NV206, and httpx2.HTTPError if another attempt may succeed.
        """

    def archived(self, file: LockedFile) -> Sequence[str]:
        """Return the URLs of archives that may still have FILE. Raises as `locate` does."""

    def client(self) -> httpx2.Client:
        """Return an HTTP client with the certificates and credentials of the configured indexes."""

    def not_offered(self, file: LockedFile, answers: Sequence[Answer]) -> Refusal:
        """Return the refusal for FILE, after every URL has failed with ANSWERS."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The error of one host that was asked for a file.

    Another attempt helps with neither a FINAL one, of a host that has no such file, nor an UNREACHED host.
    """

    url: str
    problem: str
    final: bool = False
    unreached: bool = False

    @classmethod
    def of(cls, url: str, error: Exception) -> Answer:
        """Return the answer for ERROR at URL, without the credentials that either may contain."""
        if isinstance(error, httpx2.HTTPStatusError):  # its message contains a URL
            return cls(public_url(url), f"status {error.response.status_code}")
        if isinstance(error, SilentHostError):
            return cls(public_url(url), str(error), unreached=True)
        kind = f"{type(error).__name__}: " if isinstance(error, httpx2.HTTPError) else ""
        return cls(public_url(url), f"{kind}{error}")


def public_url(url: str) -> str:
    """Return URL for messages, without credentials."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def usable(url: str, where: str) -> str:
    """Return URL, which somebody configured at WHERE. Raises Refused NV108 if it is none that can be asked."""
    try:
        _ = urlsplit(url).port, httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL) as error:
        problem = f"{url.rpartition('@')[2][:100]!a}: {error}"  # without credentials
        raise refuse("NV108", where, "a URL such as https://host/path", problem, f"correct {where}") from error
    return url


_Whom: TypeAlias = Callable[[LockedFile], Sequence[str]]


class _StoppedError(Exception):
    """The user interrupted, or nvllm failed: this download stops."""


class _BrokenError(Exception):
    """A failed transfer that another attempt may complete."""


class _NotThereError(Exception):
    """A URL that does not have the file: another attempt would not help."""


class _UnservedError(Exception):
    """A file that none of the URLs gave in one attempt."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        super().__init__("; ".join(answer.problem for answer in answers))
        self.answers = answers


def missing(files: Sequence[LockedFile], store: Store) -> tuple[LockedFile, ...]:
    """Return those of FILES that STORE lacks, or has with another size than locked, each sha256 once, in order."""
    return tuple({file.sha256: file for file in files if _size(store.path(file.sha256)) != file.size}.values())


def damaged(files: Sequence[LockedFile], store: Store, progress: Progress) -> tuple[LockedFile, ...]:
    """Hash those of FILES that STORE has and return the ones with other bytes, each sha256 once, in order."""
    lacking = {file.sha256 for file in missing(files, store)}
    present = {file.sha256: file for file in files if file.sha256 not in lacking}.values()
    changed = []
    with progress.task("hash what is there", sum(file.size for file in present), "B") as task:
        for file in present:
            if sha256_file(store.path(file.sha256)) != file.sha256:
                changed.append(file)
            task.advance(file.size)
    return tuple(changed)


def fetch(files: Sequence[LockedFile], store: Store, source: Source, progress: Progress, *, offline: bool) -> None:
    """Fetch those of FILES that STORE lacks.

    Raises Refused before any download: NV204 for each missing file if OFFLINE, NV506 if the disk is too small. After
    all downloads, raises Refused NV205 (wrong bytes) and NV206 (no longer offered, or not reachable) for every file
    that failed. An interrupted download is resumed by the next call.
    """
    absent = missing(files, store)
    if not absent:
        return
    if offline:
        names = (f"{file.filename} (sha256 {file.sha256})" for file in absent)
        problem, cure = "not in the store, and --offline", "run the command once without --offline"
        raise Refused(Refusal("NV204", str(store.root), name, problem, cure) for name in names)
    _require_space(absent, store)
    with progress.task("fetch", sum(file.size for file in absent), "B") as task:
        _fetch_all(absent, _Work(store, source, Serial(task), threading.Event(), Waits(progress)))


def _require_space(files: Sequence[LockedFile], store: Store) -> None:
    there = sum(min(max(_size(store.partial(file.sha256)), 0), file.size) for file in files)
    needed = int((sum(file.size for file in files) - there) * 1.05)
    free = shutil.disk_usage(ensure(store.root)).free
    if free < needed:
        raise Refused([_disk_too_small(store, f"{needed} bytes free for {len(files)} files", f"{free} bytes free")])


def _disk_too_small(store: Store, expected: str, free: str) -> Refusal:
    cure = "nvllm gc"
    return Refusal("NV506", str(store.root), expected, free, cure)


class Serial:
    """A progress task for use by several threads."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._lock = threading.Lock()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._task.advance(amount)


class Waits:
    """Says on a progress, once for each, what has not answered for `NOTICE` seconds. For use by several threads."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._said: set[str] = set()

    @contextmanager
    def of(self, whom: str) -> Iterator[None]:
        """Wait for WHOM within the context."""
        timer = threading.Timer(NOTICE, self._say, [whom])
        timer.daemon = True  # a process that is interrupted must not wait for it
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _say(self, whom: str) -> None:
        with self._lock:
            if whom not in self._said:
                self._said.add(whom)
                self._progress.note(f"waiting for an answer of {whom}")


@dataclass(frozen=True, slots=True)
class _Work:
    store: Store
    source: Source
    task: Serial
    stop: threading.Event
    waits: Waits


def _fetch_all(files: Sequence[LockedFile], work: _Work) -> None:
    refusals: list[Refusal] = []
    with ThreadPoolExecutor(_AT_ONCE, "fetch") as pool:
        futures = [pool.submit(_fetch_one, file, work) for file in files]
        try:
            for future in futures:
                with collected(refusals):
                    future.result()
        finally:
            # Downloads still run here only after an interrupt or a bug: do not wait for gigabytes then.
            work.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
    refuse_any(refusals)


def _fetch_one(file: LockedFile, work: _Work) -> None:
    try:
        with work.store.locked(file.sha256, work.stop.is_set):
            if not missing([file], work.store):  # another process was faster
                work.task.advance(file.size)
                return
            _from_anybody(file, work)
    except filelock.Timeout as error:
        raise _StoppedError from error


def _from_anybody(file: LockedFile, work: _Work) -> None:
    """Fetch FILE from the URLs that offer it, or else from archives."""
    answers: list[Answer] = []
    for whom in (work.source.locate, work.source.archived):
        try:
            _attempts(file, whom, work)
        except _UnservedError as error:
            answers += error.answers
        else:
            return
    raise Refused([work.source.not_offered(file, answers)])


def _attempts(file: LockedFile, whom: _Whom, work: _Work) -> None:
    """Try until FILE is in the store. Raises _UnservedError after several attempts without progress."""
    failures = restarts = 0
    while True:
        before = _size(work.store.partial(file.sha256))
        try:
            _attempt(file, whom, work)
        except _UnservedError as error:
            # A server that closes each connection early is accepted as long as the file grows, but its bytes may be
            # wrong each time.
            now = _size(work.store.partial(file.sha256))
            failures = 1 if now > before else failures + 1
            restarts += now < before
            hopeless = all(answer.final or answer.unreached for answer in error.answers)
            if failures == _ATTEMPTS or restarts == _RESTARTS or hopeless:
                raise
            if work.stop.wait(BACKOFF * 2 ** (failures - 1)):
                raise _StoppedError from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise Refused([_disk_too_small(work.store, f"room for {file.filename}", "no space left")]) from error
        else:
            return


def _attempt(file: LockedFile, whom: _Whom, work: _Work) -> None:
    """Fetch FILE from the first URL of WHOM that gives it. Raises _UnservedError with the answers of all."""
    answers: list[Answer] = []
    try:
        with work.waits.of(f"index {file.index}"):
            urls = whom(file)
    except httpx2.HTTPError as error:
        raise _UnservedError([Answer.of("", error)]) from error
    for url in urls:
        try:
            _download(url, file, work)
        except _NotThereError as error:
            answers.append(Answer(public_url(url), str(error), final=True))
        except (httpx2.HTTPError, _BrokenError) as error:
            answers.append(Answer.of(url, error))
        else:
            return
    raise _UnservedError(answers)


def not_offered(file: LockedFile, answers: Sequence[Answer]) -> Refusal:
    """Return the refusal for FILE of a package index that gave ANSWERS."""
    cure = "try again, or use another index, or lock again: nvllm lock IMAGE --update wheels"
    problems = ", ".join(dict.fromkeys(answer.problem for answer in answers)) or "no address"
    return Refusal("NV206", f"index {file.index}: {file.filename}", f"a file with sha256 {file.sha256}", problems, cure)


def _wrong_bytes(file: LockedFile, actual: str) -> Refused:
    cure = "do not use this index: it offers another file under the locked name; configure another one"
    where = f"index {file.index}: {file.filename}"
    return refuse("NV205", where, f"sha256 {file.sha256}, {file.size} bytes", actual, cure)


def _size(path: Path) -> int:
    """Return the size of PATH, -1 if it does not exist: no locked file has that size."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


class _Counted:
    """Counts the bytes of one attempt into a task, and subtracts them if the attempt fails."""

    def __init__(self, task: Serial) -> None:
        self._task = task
        self._amount = 0

    def advance(self, amount: int) -> None:
        self._amount += amount
        self._task.advance(amount)

    def take_back(self) -> None:
        self.advance(-self._amount)


def _download(url: str, file: LockedFile, work: _Work) -> None:
    """Fetch FILE from URL, resuming its partial file. Raises Refused NV205 for wrong bytes."""
    counted = _Counted(work.task)
    with ExitStack() as stack:
        stack.callback(counted.take_back)
        _bring(url, file, work, counted)
        stack.pop_all()


def _bring(url: str, file: LockedFile, work: _Work, counted: _Counted) -> None:
    partial = work.store.partial(file.sha256)
    if _size(partial) > file.size:
        partial.unlink()
    with partial.open("a+b") as stream:  # what an earlier run has brought is hashed, and continued
        digest, resumed = _receive(stream, url, file.size, counted, work)
        received = stream.tell()
    if received < file.size:
        raise _BrokenError(f"the connection ended after {received} of {file.size} bytes")
    if digest == file.sha256:
        work.store.adopt(partial, file.sha256)
        return
    partial.unlink()
    if resumed:  # the partial file of an earlier run may be wrong: try from the start
        raise _BrokenError(f"sha256 {digest} after a resumed download")
    raise _wrong_bytes(file, f"more than {file.size} bytes" if received > file.size else f"sha256 {digest}")


def _receive(stream: BufferedRandom, url: str, size: int, counted: _Counted, work: _Work) -> tuple[str, bool]:
    """Append the rest of URL to STREAM; stops when it has more than SIZE bytes.

    Returns the sha256 of the whole stream, and whether it was resumed.
    """
    hasher = hashlib.sha256()
    stream.seek(0)
    for chunk in iter(lambda: stream.read(_CHUNK), b""):
        hasher.update(chunk)
        counted.advance(len(chunk))
    start = stream.tell()
    if start == size:
        return hasher.hexdigest(), start > 0
    with _opened(url, start, work) as (begins, chunks):
        if begins != start:  # the server does not support ranges
            stream.truncate(0)
            hasher = hashlib.sha256()
            counted.take_back()
        for chunk in chunks:
            if work.stop.is_set():
                raise _StoppedError
            stream.write(chunk)
            hasher.update(chunk)
            counted.advance(len(chunk))
            if stream.tell() > size:
                break
    return hasher.hexdigest(), begins > 0


@contextmanager
def _opened(url: str, start: int, work: _Work) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Open URL, and yield the offset at which its bytes begin (START, or 0) and the bytes.

    Raises _NotThereError for a final error, _BrokenError for one that another attempt may cure.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if not path.is_file():
            raise _NotThereError("no such file")
        with path.open("rb") as local:
            local.seek(start)
            yield start, iter(lambda: local.read(_CHUNK), b"")
        return
    # A content coding would change the hashed bytes and make ranges meaningless.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with ExitStack() as stack:
        with work.waits.of(urlsplit(public_url(url)).netloc):
            response = stack.enter_context(
                work.source.client().stream("GET", url, headers=headers, follow_redirects=True)
            )
        status = response.status_code
        if status >= SERVER_ERROR or status in TRANSIENT:
            raise _BrokenError(f"status {status}")
        if status not in (_OK, _PARTIAL_CONTENT):
            raise _NotThereError(f"status {status}")
        # No chunk size: an incomplete chunk would be lost with the connection.
        yield (start if status == _PARTIAL_CONTENT else 0), response.iter_raw()
