"""What reads answers: of an engine, of what runs in a container, of a hub, an index and a mirror.

Each reader is given the body of the answers as a file. The clients are the real ones, above a transport that answers
every request: sockets would take most of the time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import docker
import httpx2
import requests
import urllib3
from requests.adapters import BaseAdapter

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine import answers
from nvllm.engine.engine import Engine
from nvllm.fleet import registry
from nvllm.layers import archive
from nvllm.layers.oci import Descriptor
from nvllm.serve import health, startup, timeline
from nvllm.serve.timeline import Timeline
from nvllm.sources import commits, hub, indexes, mirrors
from nvllm.sources.indexes import Configuration
from support import hubserver
from support.fuzzed import Reader
from support.plansamples import PLAN

SHA = "sha256:" + "5" * 64

# An engine

ENDPOINTS: Mapping[str, object] = {
    "/version": {"ApiVersion": "1.41", "Version": "28.0", "Components": [{"Name": "Engine"}]},
    "/info": {"Driver": "overlay2", "SecurityOptions": ["name=seccomp"], "DriverStatus": [["a", "b"]]},
    "/networks/bridge": {"Options": {"com.docker.network.bridge.name": "docker0"}},
    "/images/json": [{"Id": SHA}],
    "/images/nvllm:demo/json": {
        "Id": SHA,
        "RootFS": {"Type": "layers", "Layers": [SHA]},
        "RepoTags": ["nvllm:demo"],
        "RepoDigests": [],
        "Size": 1,
        "Os": "linux",
        "Architecture": "amd64",
        "Config": {"Labels": {"nvllm.build-hash": "0"}},
    },
    "/images/nvllm:demo/history": [{"CreatedBy": "nvllm base"}],
    "/containers/json": [{"Id": "1", "Names": ["/demo"], "Labels": {"nvllm.instance": "demo"}, "State": "running"}],
    "/containers/1/json": {"Id": "1", "State": {"Status": "exited", "ExitCode": 1, "OOMKilled": False}},
    "/containers/1/stats": {"memory_stats": {"max_usage": 5}, "cpu_stats": {"cpu_usage": {"total_usage": 9}}},
}


class _Body(io.BytesIO):
    """The body of an answer; the client looks how it is cut."""

    chunked = False


class _Canned(BaseAdapter):
    """Answers each request with a part of a document by its path, or with DATA as it is if that is no document."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data
        try:
            self._document: Any = json.loads(data)
        except (ValueError, RecursionError):
            self._document = None

    def send(self, request: requests.PreparedRequest, *_: object, **__: object) -> requests.Response:
        path = str(request.path_url).partition("?")[0].removeprefix("/v1.41")
        path = path.replace(SHA, "nvllm:demo")
        data = self._data
        if isinstance(self._document, dict) and path in self._document:
            data = json.dumps(self._document[path]).encode()
        found = requests.Response()
        found.status_code, found.request, found.url = 200, request, str(request.url)
        found.raw = urllib3.HTTPResponse(body=_Body(data), preload_content=False)
        return found

    def close(self) -> None:
        pass


@functools.cache
def _client() -> docker.DockerClient:
    return docker.DockerClient(base_url="http://engine:80", version="1.41")


def _ask(path: Path, *questions: Callable[[Engine], object]) -> None:
    """Ask an engine that answers with PATH each of QUESTIONS; it may refuse each."""
    client = _client()
    client.api.mount("http://", _Canned(path.read_bytes()))
    refused = None
    for question in questions:
        try:
            question(Engine(client))
        except Refused as one:
            refused = one
    if refused is not None:
        raise refused


def _engine(path: Path) -> None:
    questions: list[Callable[[Engine], object]] = [Engine.facts, Engine.containers, lambda held: held.product]
    _ask(path, *questions, lambda held: held.state("1"), lambda held: held.usage("1"))


def _images(path: Path) -> None:
    _ask(path, Engine.images, lambda held: held.description("nvllm:demo"))


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _saved() -> bytes:
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [SHA]}}).encode()
    listed = [{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]
    return _tar({"config.json": config, "layer.tar": b"layer", "manifest.json": json.dumps(listed).encode()})


def _file(path: Path) -> None:
    stream = [path.read_bytes()]
    _ask(path, lambda _: _form(lambda: answers.file(stream, 1 << 20)))


def _blobs(path: Path) -> None:
    _ask(path, lambda _: _form(lambda: archive.blobs(iter([path.read_bytes()]), [SHA])))


def _form(read: Callable[[], object]) -> None:
    """Let READ read, which may say that an answer has another form; `Engine` makes a refusal of that."""
    try:
        read()
    except (ValueError, LookupError, tarfile.TarError):
        return


# What runs in a container


def _completion(path: Path) -> None:
    page = path.read_bytes().decode(errors="replace")
    with mock.patch.object(health, "answer", return_value=health.EngineAnswer(200, page, 0.1)):
        for ask in (lambda: health.generate(PLAN, 1.0), lambda: health.longest(8000)):
            with contextlib.suppress(health.NotReady):
                ask()


def _log(path: Path) -> None:
    found = Timeline(0.0)
    for line in startup.whole_lines([path.read_bytes()]):
        stamped = timeline.stamped(line.decode("utf-8", "replace"))
        if stamped is not None:
            found.feed(*stamped)
    for kernel in found.kernels.values():
        json.dumps([kernel.key, kernel.name, kernel.arguments]).encode()
        kernel.key.encode()


_LOG = b"""2026-11-20T10:00:00.123456789Z nvllm.gate {"event": "passed"}
2026-11-20T10:00:01Z Starting to load model x
2026-11-20T10:00:02Z nvllm.kernels miss key=ABC name=zero
2026-11-20T10:00:02Z nvllm.kernels compiled {"key": "ABC", "name": "zero", "arguments": "i32"}
2026-11-20T10:00:03+02:00 GPU KV cache size: 12,345 tokens
2026-11-20T10:00:03Z nvllm.gate {"event": "refused", "findings": [{"where": "a", "expected": "b", "found": "c"}]}
"""

_METRICS = b"""vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
vllm:generation_tokens_total{engine="0"} 8e3
"""

# A hub, an index, a mirror


def _transport(data: bytes, kind: str) -> httpx2.MockTransport:
    return httpx2.MockTransport(lambda _: httpx2.Response(200, content=data, headers={"Content-Type": kind}))


def _hub_seed() -> bytes:
    siblings = [
        {"rfilename": "model.safetensors", "size": 4, "lfs": {"size": 4, "sha256": "0" * 64, "pointerSize": 130}},
    ]
    return json.dumps({"_id": "1", "id": hubserver.REPO, "sha": "4" * 40, "siblings": siblings}).encode()


def _hub(path: Path) -> None:
    import huggingface_hub

    transport = _transport(path.read_bytes(), "application/json")
    huggingface_hub.set_client_factory(lambda: httpx2.Client(transport=transport))
    try:
        hub.resolve(hubserver.REPO, "main", cache_dir=path.parent / "hub", endpoint="http://hub", progress=Silent())
    finally:
        huggingface_hub.set_client_factory(httpx2.Client)


@functools.cache
def _indexes() -> indexes.Indexes:
    return indexes.Indexes(Configuration(("http://index/simple",), (), ("index",), None))


_NUMBERS = itertools.count()


def _index(kind: str, path: Path) -> None:
    """Ask an index that answers with PATH, for another name each time, because answers are kept."""
    asked, name = _indexes(), f"demo{next(_NUMBERS)}"
    client: Any = asked.client()
    client._mounts = {}
    client._transport = _transport(path.read_bytes().replace(b"demo", name.encode()), kind)
    for ask in (lambda: asked.wheels(name, "1.0"), lambda: asked.sdist(name, "1.0")):
        try:
            found = ask()
        except Refused:
            continue
        for one in found if isinstance(found, tuple) else (found,):
            assert len(one.sha256) == 64
            assert set(one.sha256) <= set("0123456789abcdef")


_PAGE = f"""<!DOCTYPE html><html><body>
<a href="demo-1.0-py3-none-any.whl#sha256={"0" * 64}" data-requires-python="&gt;=3">demo-1.0-py3-none-any.whl</a>
<a href="../demo-1.0.tar.gz#sha256={"1" * 64}" data-yanked="no">demo-1.0.tar.gz</a></body></html>""".encode()


def _json_page() -> bytes:
    files = [
        {"filename": name, "url": f"http://index/{name}", "hashes": {"sha256": "0" * 64}, "yanked": False}
        for name in ("demo-1.0-py3-none-any.whl", "demo-1.0.tar.gz")
    ]
    return json.dumps({"meta": {"api-version": "1.0"}, "name": "demo", "files": files}).encode()


def _release(path: Path) -> None:
    """Ask a mirror, and a list of mirrors, that answer everything with PATH."""
    with httpx2.Client(transport=_transport(path.read_bytes(), "text/plain")) as client:
        mirrors.among(["http://mirror/debian/", "mirror+http://mirror/list"], "bookworm", client)


def _registry_seed() -> bytes:
    listed = {"manifests": [{"mediaType": "a/b", "digest": SHA, "size": 5, "artifactType": "c/d"}]}
    headers = {"Location": "http://localhost/v2/x/uploads/1", "Range": "0-0", "WWW-Authenticate": 'Bearer realm="x"'}
    return json.dumps({"status": 200, "headers": headers, "body": json.dumps(listed)}).encode()


@functools.cache
def _repository() -> registry.Repository:
    return registry.Repository(registry.RepositoryName("http", "localhost", "x"), None, Silent())


def _bytes(value: object) -> bytes:
    return str(value).encode(errors="replace")


def _registry(path: Path) -> None:
    """Ask a registry whose every answer is PATH: status, headers and body, or PATH as it is."""
    data = path.read_bytes()
    try:
        said: Any = json.loads(data)
        headers = {_bytes(name): _bytes(value) for name, value in said["headers"].items()}
        status, body = int(said["status"]) % 1000, _bytes(said["body"])
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError):
        status, headers, body = 200, {}, data

    def answered(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))

    asked = _repository()
    client: Any = asked.client
    client._mounts, client._transport = {}, httpx2.MockTransport(answered)
    questions: list[Callable[[], object]] = [
        lambda: asked.find_manifest("latest"),
        lambda: asked.document(Descriptor("a/b", SHA, 5)),
        lambda: asked.referrers(SHA, "c/d"),
        lambda: asked.push_blobs([registry.Blob.of(b"bytes")]),
        lambda: asked.push_referrer(b"{}", SHA, "c/d"),
    ]

    @contextlib.contextmanager
    def token(*_: object, **__: object) -> Iterator[httpx2.Response]:
        yield answered(httpx2.Request("GET", "http://token"))

    with mock.patch.object(registry, "BACKOFF", 0.0), mock.patch.object(httpx2, "stream", token):
        for question in questions:
            with contextlib.suppress(Refused):
                question()


def _refs(path: Path) -> None:
    commits.commit_in(path.read_bytes(), "0.28.0")


READERS: Mapping[str, Reader] = {
    "engine": Reader("engine.json", lambda: json.dumps(ENDPOINTS).encode(), _engine),
    "engine images": Reader("engine.json", lambda: json.dumps(ENDPOINTS).encode(), _images),
    "engine file": Reader("file.tar", lambda: _tar({"identity.json": b"{}"}), _file),
    "engine save": Reader("saved.tar", _saved, _blobs),
    "completion": Reader(
        "completion.json",
        lambda: json.dumps(
            {
                "choices": [{"text": "x"}],
                "usage": {"completion_tokens": PLAN.probe.max_tokens},
                "data": [{"max_model_len": 4096}],
            }
        ).encode(),
        _completion,
    ),
    "engine log": Reader("engine.log", lambda: _LOG, _log),
    "metrics": Reader(
        "metrics", lambda: _METRICS, lambda path: health.parse_metrics(path.read_bytes().decode(errors="replace"))
    ),
    "hub": Reader("model.json", _hub_seed, _hub),
    "index page": Reader("index.html", lambda: _PAGE, functools.partial(_index, "text/html")),
    "index JSON": Reader("index.json", _json_page, functools.partial(_index, "application/vnd.pypi.simple.v1+json")),
    "registry": Reader("answer.json", _registry_seed, _registry),
    "mirror": Reader(
        "Release",
        lambda: b"Origin: Debian\nSuite: stable\nSnapshots: http://snapshot/@SNAPSHOTID@/\n",
        _release,
    ),
    "tags": Reader(
        "refs", lambda: f"{'1' * 40}\trefs/tags/v0.28.0\n{'2' * 40}\trefs/tags/v0.28.0^{{}}\n".encode(), _refs
    ),
}
