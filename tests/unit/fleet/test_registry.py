"""Talking to a registry: names, what travels, breaks in the middle, logging in, wrong bytes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet import registry
from nvllm.fleet.credentials import Credentials
from nvllm.fleet.registry import Blob, BlobSource, Repository, RepositoryName
from nvllm.layers.oci import MANIFEST, Descriptor, sha256
from nvllm.sources import fetch
from nvllm.sources.fetch import Answer
from nvllm.sources.store import Store
from support import oci_registry
from support.loopback import basic
from support.oci_registry import Registry
from support.rows import each_row

DATA = bytes(range(256)) * 400
"""102,400 bytes."""
OTHER = b"other bytes"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(registry, "BACKOFF", 0.001)
    with oci_registry.running() as running:
        yield running


@each_row(
    ("text", "scheme", "host", "path", "digest"),
    [
        ("registry.example/team/nvllm", "https", "registry.example", "team/nvllm", None),
        ("127.0.0.1:5000/nvllm", "http", "127.0.0.1:5000", "nvllm", None),
        ("localhost/nvllm", "http", "localhost", "nvllm", None),
        ("[::1]:5000/nvllm", "http", "[::1]:5000", "nvllm", None),
        ("http://lan:5000/n", "http", "lan:5000", "n", None),
        ("https://127.0.0.1/n", "https", "127.0.0.1", "n", None),
        (f"h.example/n@{sha256(DATA)}", "https", "h.example", "n", sha256(DATA)),
    ],
)
def test_names(text: str, scheme: str, host: str, path: str, digest: str | None) -> None:
    assert registry.parse(text) == (RepositoryName(scheme, host, path), digest)
    assert registry.parse(RepositoryName(scheme, host, path).typed) == (RepositoryName(scheme, host, path), None)


@each_row(
    "text",
    [
        "",
        "nvllm",
        "host/Upper",
        "host/a//b",
        "host/../x",
        "host/n@sha256:1",
        "user:secret@host/n",
        "ftp://host/n",
        "a b/c",
    ],
)
def test_what_is_no_name_of_a_repository_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        registry.parse(text)
    assert [one.code for one in refused.value.refusals] == ["NV108"]


@each_row(
    "text",
    [
        "https://me:hunter2@registry.example/nvllm",
        "me:hunter2@registry.example/nvllm",
        "https://me:hun/ter2@registry.example/nvllm",
        "https://me:hunter2@registry.example",
        "hunter2@registry.example/nvllm@sha256:" + "a" * 64,
    ],
)
def test_a_password_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(Refused) as refused:
        registry.parse(text)
    (refusal,) = refused.value.refusals
    assert refusal.code == "NV108"
    assert "ter2" not in str(refusal)


def test_only_what_the_registry_lacks_travels(kept: Registry, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    blobs = [Blob(sha256(DATA), len(DATA), path), Blob.of(OTHER), Blob.of(OTHER)]
    repository = kept.repository()
    assert repository.push_blobs(blobs[1:]) == len(OTHER)
    assert repository.push_blobs(blobs) == len(DATA)
    assert repository.push_blobs(blobs) == 0
    assert kept.blobs == {sha256(DATA): DATA, sha256(OTHER): OTHER}
    assert kept.received == len(DATA) + len(OTHER)


@pytest.mark.parametrize("cuts", [[1000], [0], [50_000, 20_000, 1], [1000] * 20])
def test_an_upload_that_breaks_goes_on_where_it_stopped(kept: Registry, cuts: list[int]) -> None:
    kept.cuts = [*cuts]
    kept.repository().push_blobs([Blob.of(DATA)])
    assert kept.blobs == {sha256(DATA): DATA}
    assert kept.received == len(DATA)  # nothing travelled twice


def test_a_blob_that_is_not_there_is_pushed_again_and_one_that_did_not_arrive_is_pulled_again(kept: Registry) -> None:
    source, file = BlobSource(kept.repository()), LockedFile("layer.tar", "0" * 64, 1, "registry")
    lost = [Answer("url", "ReadTimeout: timed out"), Answer("url", "no connection", unreached=True)]
    assert source.not_offered(file, lost).cure == "try again; what has come is not fetched again"
    there_is_none = [*lost, Answer("url", "status 404", final=True)]
    assert source.not_offered(file, there_is_none).cure.startswith("push it again from a host that has it")


def test_an_upload_that_the_registry_forgot_begins_anew(kept: Registry) -> None:
    kept.cuts, kept.forgets = [70_000], True
    kept.repository().push_blobs([Blob.of(DATA)])
    assert kept.blobs == {sha256(DATA): DATA}
    assert kept.received == len(DATA) + 70_000


def test_a_registry_that_always_breaks_is_given_up_with_its_words(kept: Registry) -> None:
    kept.cuts = [0] * 50
    with pytest.raises(Refused) as refused:
        kept.repository().push_blobs([Blob.of(DATA)])
    (found,) = refused.value.refusals
    assert found.code == "NV331"
    assert sha256(DATA) in found.expected
    assert kept.blobs == {}


def test_bytes_that_changed_on_the_way_are_refused(kept: Registry) -> None:
    with pytest.raises(Refused) as refused:
        kept.repository().push_blobs([Blob(sha256(OTHER), len(DATA), data=DATA)])
    (found,) = refused.value.refusals
    assert (found.code, found.found) == ("NV331", "status 400: other bytes")


def test_a_registry_that_restarts_is_asked_again(kept: Registry) -> None:
    kept.failures = 3
    assert kept.repository().find_manifest("latest") is None


def test_a_manifest_by_digest_has_that_digest(kept: Registry) -> None:
    repository = kept.repository()
    sent = repository.push_manifest("v1", b'{"a": 1}')
    assert sent == Descriptor(MANIFEST, sha256(b'{"a": 1}'), 8)
    assert repository.manifest(sent.digest) == repository.manifest("v1") == b'{"a": 1}'
    kept.manifests[sent.digest] = b'{"a": 2}'
    with pytest.raises(Refused) as refused:
        repository.manifest(sent.digest)
    assert refused.value.refusals[0].code == "NV205"


def test_documents_are_bounded_and_exact(kept: Registry) -> None:
    kept.blobs[sha256(OTHER)] = OTHER
    repository = kept.repository()
    assert repository.document(Descriptor("x", sha256(OTHER), len(OTHER))) == OTHER
    codes = []
    for wanted, most in [
        (Descriptor("x", sha256(OTHER), 3), 100),
        (Descriptor("x", sha256(OTHER), len(OTHER)), 3),
        (Descriptor("x", sha256(DATA), len(DATA)), 100),
    ]:
        with pytest.raises(Refused) as refused:
            repository.document(wanted, most)
        codes += [one.code for one in refused.value.refusals]
    assert codes == ["NV205", "NV331", "NV331"]


@pytest.mark.parametrize("knows", [True, False])
def test_referrers_are_found_with_and_without_their_api(kept: Registry, knows: bool) -> None:
    kept.knows_subjects = knows
    repository = kept.repository()
    subject = repository.push_manifest("image", b"{}")
    texts = [
        b'{"artifactType":"application/x","mediaType":"%b","n":%d,"subject":{"digest":"%b"}}'
        % (MANIFEST.encode(), number, subject.digest.encode())
        for number in (1, 2)
    ]
    for text in (*texts, texts[0]):
        repository.push_referrer(text, subject.digest, "application/x")
    found = repository.referrers(subject.digest, "application/x")
    assert repository.referrers(subject.digest, "application/y") == ()
    assert sorted(one.digest for one in found) == sorted(map(sha256, texts))
    assert (subject.digest.replace(":", "-") in kept.manifests) is not knows


def test_credentials_get_a_token_and_show_in_no_message(kept: Registry) -> None:
    kept.credentials = "me:hunter2"
    kept.repository(Credentials("me", "hunter2")).push_blobs([Blob.of(DATA)])
    assert kept.blobs == {sha256(DATA): DATA}
    for wrong in (None, Credentials("me", "secret-word")):
        with pytest.raises(Refused) as refused:
            kept.repository(wrong).push_blobs([Blob.of(OTHER)])
        (found,) = refused.value.refusals
        assert (found.code, found.cure) == ("NV331", f"docker login {kept.url.removeprefix('http://')}")
        assert "secret-word" not in repr(refused.value.refusals) + repr(wrong)


def test_a_token_is_read_within_bounds(kept: Registry) -> None:
    kept.credentials, kept.token = "me:hunter2", b'{"token": "' + b"s" * (5 << 20)
    with pytest.raises(Refused) as refused:
        kept.repository(Credentials("me", "hunter2")).find_manifest("v1")
    assert [(one.code, one.found) for one in refused.value.refusals] == [("NV331", f"more than {4 << 20} bytes")]


def test_a_password_goes_to_no_weaker_transport_than_the_registry_has(kept: Registry) -> None:
    kept.credentials, kept.realm = "me:hunter2", "ftp://elsewhere.example/token"
    with pytest.raises(Refused):
        kept.repository(Credentials("me", "hunter2")).find_manifest("v1")
    assert "GET /token" not in kept.asked


def with_password(answer: Callable[[httpx2.Request], httpx2.Response]) -> Repository:
    """Return a repository of https://registry.example, which gives ANSWER, asked with a password."""
    asked = Repository(RepositoryName("https", "registry.example", "x"), Credentials("me", "hunter2"), Silent())
    client: Any = asked.client
    client._mounts, client._transport = {}, httpx2.MockTransport(answer)
    return asked


@each_row("origin", ["https://elsewhere.example", "http://registry.example", "https://registry.example:8443"])
def test_credentials_go_to_no_place_that_the_registry_names(origin: str) -> None:
    """Nor to itself in plain text, or on another port, where another program may listen."""
    seen: list[tuple[str, str | None]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        given, asked = request.headers.get("Authorization"), str(request.url.copy_with(raw_path=b"/"))[:-1]
        seen.append((asked, given))
        if asked == "https://registry.example" and given is None:
            return httpx2.Response(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        place = {"Location": f"{origin}/upload"}
        return httpx2.Response({"HEAD": 404, "PUT": 201}.get(request.method, 202), headers=place)

    with_password(answer).push_blobs([Blob.of(DATA)])
    assert ("https://registry.example", basic("me:hunter2")) in seen
    assert {given for asked, given in seen if asked == origin} == {None}


def test_a_token_is_not_fetched_in_plain_text_for_a_registry_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = {"WWW-Authenticate": 'Bearer realm="http://registry.example/token",service="here"'}

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(401, headers=challenge, stream=httpx2.ByteStream(b""))

    repository = with_password(answer)
    monkeypatch.setattr(registry, "BoundedClient", None)  # whoever asks for a token makes a client
    with pytest.raises(Refused):
        repository.find_manifest("v1")


def test_a_blob_whose_record_a_full_disk_cut_short_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """docker-registry answers 500 when it is asked for such a blob."""
    blob = Blob.of(DATA)
    assert answering(lambda _: httpx2.Response(500), monkeypatch).lacking([blob]) == [blob]
    assert answering(lambda _: httpx2.Response(200), monkeypatch).lacking([blob]) == []


def test_blobs_come_by_the_store_which_hashes_them(kept: Registry, tmp_path: Path) -> None:
    store, file = Store(tmp_path), LockedFile("layer.tar", sha256(DATA).removeprefix("sha256:"), len(DATA), "registry")
    source = BlobSource(kept.repository())
    with pytest.raises(Refused) as refused:
        fetch.fetch([file], store, source, Silent(), offline=False)
    assert refused.value.refusals[0].code == "NV331"
    kept.blobs[sha256(DATA)] = DATA[:-1] + b"!"
    with pytest.raises(Refused) as refused:
        fetch.fetch([file], store, source, Silent(), offline=False)
    assert refused.value.refusals[0].code == "NV205"
    kept.blobs[sha256(DATA)] = DATA
    fetch.fetch([file], store, source, Silent(), offline=False)
    assert store.path(file.sha256).read_bytes() == DATA
    assert os.listdir(tmp_path / "partial") == []


def answering(answer: Callable[[httpx2.Request], httpx2.Response], monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a repository of a registry that gives ANSWER to each request, and is asked again at once."""
    monkeypatch.setattr(registry, "BACKOFF", 0.0)
    asked = Repository(RepositoryName("http", "localhost", "x"), None, Silent())
    asked.client = httpx2.Client(transport=httpx2.MockTransport(answer))
    return asked


def test_a_registry_that_says_now_more_and_now_less_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    said = itertools.cycle(["0-2", "0-0"])
    requests = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        assert len(requests) < 200
        if request.method == "POST":
            return httpx2.Response(202, headers={"Location": "/v2/x/uploads/1"})
        if request.method == "GET":
            return httpx2.Response(204, headers={"Range": next(said)})
        return httpx2.Response(404 if request.method == "HEAD" else 503)

    with pytest.raises(Refused) as caught:
        answering(answer, monkeypatch).push_blobs([Blob.of(b"bytes")])
    assert [one.code for one in caught.value.refusals] == ["NV331"]


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(302, headers={"Location": "http://localhost/v2/x"}),
        httpx2.Response(302, headers={"Location": "http://["}),
        httpx2.Response(200, content=b'{"manifests": [{"digest": 5}]}'),
    ],
    ids=["redirects without end", "no URL", "no descriptor"],
)
def test_answers_that_no_registry_gives(answer: httpx2.Response, monkeypatch: pytest.MonkeyPatch) -> None:
    held = answer.content if answer.status_code == 200 else b""
    with pytest.raises(Refused) as caught:
        answering(
            lambda _: httpx2.Response(answer.status_code, headers=answer.headers, stream=httpx2.ByteStream(held)),
            monkeypatch,
        ).referrers("sha256:" + "0" * 64, "application/x")
    assert [one.code for one in caught.value.refusals] == ["NV331"]
