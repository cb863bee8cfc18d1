"""What a hostile registry may cost: seconds, bytes and memory, for each answer that one can give."""

from __future__ import annotations

import functools
import gzip
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.canonical import Json
from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet import registry
from nvllm.fleet.blessings import ARTIFACT
from nvllm.fleet.bounded import Pace, RegistryLimits
from nvllm.fleet.credentials import Credentials
from nvllm.fleet.registry import Blob, BlobSource, Repository
from nvllm.layers.oci import MANIFEST, sha256
from nvllm.sources import fetch
from nvllm.sources.store import Store
from support import blessings_world, hostile_registry
from support.hostile_registry import Answer, dripping, endless, head, plain, whole

SMALL = RegistryLimits(seconds=0.5, document=64 << 10, least=64 << 10, window=0.5)
PATIENCE = 6.0
"""Seconds after which a row has failed; with `SMALL`, each should take one, and this machine may be busy."""
CHUNKED, LONG = "Transfer-Encoding: chunked", "Content-Length: 1000000000000000"
PIECE = b"10000\r\n" + b"x" * 65536 + b"\r\n"
ENTRY = {"mediaType": MANIFEST, "digest": sha256(b""), "size": 2}
DIGEST = sha256(b"0")


def by_path(answers: dict[str, Answer], otherwise: Answer) -> Answer:
    """Answer a request by the first of ANSWERS whose name is in its method and path, else by OTHERWISE."""

    def answer(connection: socket.socket, asked: str) -> None:
        next((one for name, one in answers.items() if name in asked), otherwise)(connection, asked)

    return answer


def _pull(repository: Repository) -> None:
    repository.manifest("v1")


def _push(repository: Repository) -> None:
    repository.push_blobs([Blob.of(b"blob" * 1000)])


def _put(repository: Repository) -> None:
    repository.push_manifest("v1", b"{}")


def _refer(repository: Repository) -> None:
    repository.referrers(DIGEST, ARTIFACT)


def _challenge(connection: socket.socket, _: str) -> None:
    host, port = connection.getsockname()
    realm = f'Bearer realm="http://{host}:{port}/token",service="here"'
    connection.sendall(whole("401 Unauthorized", WWW_Authenticate=realm))


def _turned(connection: socket.socket, asked: str) -> None:
    connection.sendall(whole("302 Found", Location=asked.partition(" ")[2] + "x"))


ABSENT = plain(whole("404 Not Found"))
UPLOAD = plain(whole("202 Accepted", Location="/v2/team/nvllm/blobs/uploads/1"))
BOMB = gzip.compress(bytes(50 << 20))
MANY = json.dumps({"manifests": [ENTRY] * 30_000}).encode()
Row = tuple[str, Answer, Callable[[Repository], None]]
ROWS: list[Row] = [
    ("a POST is answered without end", by_path({"HEAD": ABSENT}, endless(head("202 OK", CHUNKED), PIECE)), _push),
    ("a POST is refused without end", by_path({"HEAD": ABSENT}, endless(head("400 No", CHUNKED), PIECE)), _push),
    ("a POST's answer drips", by_path({"HEAD": ABSENT}, dripping(head("202 OK", LONG), b"x")), _push),
    ("a PUT is answered without end", endless(head("201 Created", CHUNKED), PIECE), _put),
    ("a PATCH's answer drips", by_path({"HEAD": ABSENT, "POST": UPLOAD}, dripping(b"", b"HTTP/1.1 202")), _push),
    ("a manifest drips", dripping(head("200 OK", LONG), b"x"), _pull),
    ("a manifest drips in chunks", dripping(head("200 OK", CHUNKED), b"1\r\nx\r\n"), _pull),
    ("a manifest drips until the connection ends", dripping(head("200 OK", "Connection: close"), b"x"), _pull),
    ("a head drips", dripping(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"), _pull),
    ("a head has no end", endless(b"HTTP/1.1 200 OK\r\n", b"a: " + b"b" * 5000 + b"\r\n"), _pull),
    ("a head is one line without end", endless(b"HTTP/1.1 200 OK\r\na: ", b"b" * 5000), _pull),
    ("heads of interim answers have no end", endless(b"", head("103 Early Hints", "a: b")), _pull),
    ("a manifest of 10^15 bytes", endless(head("200 OK", LONG), b"x" * 65536), _pull),
    ("a manifest of 10^15 bytes, and silence", plain(head("200 OK", LONG)), _pull),
    ("silence", lambda connection, _: time.sleep(PATIENCE), _pull),
    ("a missing manifest without end", endless(head("404 Not Found", CHUNKED), PIECE), _pull),
    ("a failure without end", endless(head("503 Later", CHUNKED), PIECE), _pull),
    ("a failure that drips", dripping(head("503 Later", LONG), b"x"), _pull),
    ("a gzip bomb", plain(whole("200 OK", BOMB, Content_Encoding="gzip")), _pull),
    ("a gzip bomb of a failure", plain(whole("400 No", BOMB, Content_Encoding="gzip")), _put),
    ("redirects without end", _turned, _pull),
    ("a redirect with a body without end", endless(head("302 Found", "Location: /x", CHUNKED), PIECE), _pull),
    ("a challenge without end", endless(head("401 No", 'WWW-Authenticate: Basic realm="x"', CHUNKED), PIECE), _pull),
    ("challenges again and again", by_path({"/token": plain(whole("200 OK", b'{"token":"x"}'))}, _challenge), _pull),
    ("a token without end", by_path({"/token": endless(head("200 OK", CHUNKED), PIECE)}, _challenge), _pull),
    ("a token that drips", by_path({"/token": dripping(head("200 OK", LONG), b" ")}, _challenge), _pull),
    ("a refused token without end", by_path({"/token": endless(head("403 No", CHUNKED), PIECE)}, _challenge), _pull),
    ("30,000 that refer to it", plain(whole("200 OK", MANY)), _refer),
    (
        "pages of what refers to it without end",
        plain(whole("200 OK", b'{"manifests":[]}', Link="</x>; rel=next")),
        _refer,
    ),
]
HARMLESS = {"pages of what refers to it without end", "a gzip bomb"}
"""What is no harm: further pages are not asked for, and what comes is taken as it is."""


def _codes(ask: Callable[[Repository], object], repository: Repository) -> list[str]:
    try:
        ask(repository)
    except Refused as refused:
        return [one.code for one in refused.refusals if one.cure]
    return []


@pytest.mark.thorough
def test_no_answer_costs_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACKOFF", 0.01)
    wrong = []
    for name, answer, ask in ROWS:
        began = time.monotonic()
        with hostile_registry.running(answer) as hostile:
            codes = _codes(ask, hostile.repository(SMALL, Credentials("me", "hunter2")))
        took = time.monotonic() - began
        if took > PATIENCE or codes != ([] if name in HARMLESS else ["NV331"]):
            wrong.append(f"{name}: {codes} after {took:.1f} s")
    assert wrong == []


def _layer(size: Json) -> dict[str, Json]:
    return {"mediaType": "x", "digest": DIGEST, "size": size}


def test_descriptors_have_sizes_that_a_blob_can_have() -> None:
    for size in (-1, -(10**15), 10**15, 2**53 - 1, True, 1.5, "1", None):
        with pytest.raises(ValueError, match="descriptor"):
            registry.described(_layer(size))
    assert registry.described(_layer(0)).size == 0
    with pytest.raises(ValueError, match="1001 descriptors"):
        registry.layers_of({"layers": [_layer(1)] * 1001})


SIZE = 10 << 20


def _fetched(answer: Answer, path: Path) -> tuple[list[str], float]:
    """Fetch a blob of `SIZE` bytes from a registry that gives ANSWER; return codes and seconds."""
    file = LockedFile("layer.tar", "0" * 64, SIZE, "registry")
    began = time.monotonic()
    with hostile_registry.running(answer) as hostile, pytest.raises(Refused) as caught:
        fetch.fetch([file], Store(path), BlobSource(hostile.repository(SMALL)), Silent(), offline=False)
    return [one.code for one in caught.value.refusals], time.monotonic() - began


def _torn(connection: socket.socket, _: str) -> None:
    """One byte more of the blob for each connection."""
    connection.sendall(head("206 Partial Content", f"Content-Length: {SIZE}", "Connection: close") + b"x")
    time.sleep(0.1)
    connection.shutdown(socket.SHUT_RDWR)


def test_a_blob_comes_at_a_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "BACKOFF", 0.01)
    length = f"Content-Length: {SIZE}"
    rows: list[tuple[str, Answer, str]] = [
        ("it drips", dripping(head("200 OK", length), b"x" * 100), "NV331"),
        ("its head drips", dripping(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"), "NV331"),
        ("each connection brings one byte", _torn, "NV331"),
        ("it has no end", endless(head("200 OK", CHUNKED), PIECE), "NV205"),
        ("a failure without end", endless(head("503 Later", CHUNKED), PIECE), "NV331"),
    ]
    wrong = []
    for number, (name, answer, expected) in enumerate(rows):
        codes, took = _fetched(answer, tmp_path / str(number))
        if codes != [expected] or took > PATIENCE:
            wrong.append(f"{name}: {codes} after {took:.1f} s")
    assert wrong == []


def test_a_blob_is_taken_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a registry that does not read, and by one that takes a byte for each request."""
    monkeypatch.setattr(registry, "BACKOFF", 0.01)
    taken = 0

    def little(connection: socket.socket, asked: str) -> None:
        nonlocal taken
        if asked.startswith("PATCH"):
            time.sleep(0.05)
            connection.sendall(whole("503 Later"))
        else:
            taken += 1
            place = "/v2/team/nvllm/blobs/uploads/1"
            connection.sendall(whole("204 No Content", Location=place, Range=f"0-{taken}"))

    def deaf(connection: socket.socket, asked: str) -> None:
        if asked.startswith("PATCH"):
            time.sleep(PATIENCE)

    for answer, reads in ((little, True), (deaf, False)):
        began = time.monotonic()
        opened = by_path({"HEAD": ABSENT, "POST": UPLOAD}, answer)
        with hostile_registry.running(opened, reads=reads) as hostile, pytest.raises(Refused) as caught:
            hostile.repository(SMALL).push_blobs([Blob.of(bytes(32 << 20))])
        (refusal,) = caught.value.refusals
        assert (refusal.code, time.monotonic() - began < PATIENCE) == ("NV331", True)


def test_a_registry_that_is_silent_costs_a_push_of_many_blobs_no_more_than_one() -> None:
    """Four travel at a time; once one is given up, no further one is begun."""

    def silent(_connection: socket.socket, _asked: str) -> None:
        time.sleep(PATIENCE)

    blobs, began = [Blob.of(bytes([number])) for number in range(24)], time.monotonic()
    with hostile_registry.running(by_path({"HEAD": ABSENT}, silent)) as hostile:
        assert _codes(functools.partial(Repository.push_blobs, blobs=blobs), hostile.repository(SMALL)) == ["NV331"]
        took = time.monotonic() - began
        posts = sum(one.startswith("POST") for one in hostile.asked)
        assert posts < len(blobs), posts  # each of the four may ask several times
        assert took < PATIENCE / 2


def test_a_registry_may_hash_a_blob_before_it_has_taken_it() -> None:
    def late(connection: socket.socket, asked: str) -> None:
        time.sleep(1.0 if asked.startswith("PUT") else 0.0)
        connection.sendall(whole("201 Created" if asked.startswith("PUT") else "202 Accepted"))

    limits = RegistryLimits(
        seconds=0.5, hashed=10_000
    )  # so 4,000 bytes may take 0.4 s more than another answer, 40,000 4 s
    codes = {}
    for size in (4_000, 40_000):
        with hostile_registry.running(by_path({"HEAD": ABSENT, "POST": UPLOAD}, late)) as hostile:
            ask = functools.partial(Repository.push_blobs, blobs=[Blob.of(bytes(size))])
            codes[size] = _codes(ask, hostile.repository(limits))
    assert codes == {4_000: ["NV331"], 40_000: []}


def test_pace() -> None:
    pace = Pace(RegistryLimits(least=100, window=1.0))
    counted = [
        pace.count(60, 0.9),
        pace.count(60, 5.0),
        pace.count(99, 1.0),
    ]  # the second is late, but then all is there
    assert counted == [None, None, None]
    assert str(pace.count(0, 0.1)) == "99 bytes of a blob in 1 s; 100 are the least in 1 s"


PROGRAM = """
import resource, sys
from nvllm.core.refusal import Refused
from nvllm.fleet.blessings import ARTIFACT
from support.hostile_registry import Hostile

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
repository = Hostile(sys.argv[1]).repository()
for ask in (lambda: repository.push_manifest("v1", b"{}"), lambda: repository.manifest("v1"),
            lambda: repository.referrers("sha256:" + "0" * 64, ARTIFACT)):
    try:
        ask()
    except Refused as refused:
        print(*(one.code for one in refused.refusals))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.thorough
def test_memory_with_the_limits_that_users_have() -> None:
    """At most 200 MB: bodies without end, and the document that takes the most memory for its size."""
    heavy = b'{"manifests":[' + b"{}," * (((4 << 20) - 40) // 3) + b"{}]}"
    answers = by_path(
        {"PUT": endless(head("201 Created", CHUNKED), PIECE), "referrers": plain(whole("200 OK", heavy))},
        endless(head("200 OK", LONG), b"x" * 65536),
    )
    with hostile_registry.running(answers) as hostile:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, hostile.host],
            env=blessings_world.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    *codes, used = done.stdout.split()
    assert codes == ["NV331"] * 3
    assert int(used) < 200, used
