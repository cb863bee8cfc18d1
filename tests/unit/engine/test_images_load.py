"""Loading an image: whatever an engine's image store does with an archive, and says of it, what it then holds counts.

The stores are stand-ins behind the real client and a real socket, because three engines are not at hand in a unit
test; what they do here is what Docker 20.10, 26 and 28 and Podman do with the same archives in tests/engines.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nvllm.core.progress import Progress, Silent
from nvllm.core.refusal import Refused
from nvllm.engine import engine
from nvllm.layers import oci, tarlayer
from nvllm.layers.oci import Image
from support.engine_socket import Answer, answering
from support.layersamples import Telling

SILENT = Silent()
FIRST, SECOND = "nvllm:demo-1", "nvllm:demo"

Loads = Callable[["Store", dict[str, bytes]], dict[str, Any]]


@dataclass
class Store:
    """An engine's images by id, its tags, and how many layers each archive brought it."""

    loads: Loads
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    brought: list[int] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Images that the engine lists whole, and cannot make a container of."""

    def inspect(self, name: str) -> dict[str, Any] | None:
        found = self.images.get(self.tags.get(name, name))
        named = [tag for tag, one in self.tags.items() if found is not None and one == found["Id"]]
        return None if found is None else {**found, "RepoTags": named}

    def put(self, name: str, diff_ids: list[str], tag: str) -> None:
        self.images[name] = {"Id": name, "Os": "linux", "Architecture": "amd64", "RootFS": {"Layers": diff_ids}}
        self.tags[tag] = name

    def take(self, data: bytes) -> dict[str, Any]:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            streams = {member.name: tar.extractfile(member) for member in tar}
            content = {name: stream.read() for name, stream in streams.items() if stream is not None}
        self.brought.append(len([name for name in content if name.startswith("blobs/")]) - 2)
        return self.loads(self, content)


def _blob(content: dict[str, bytes], digest: str) -> Any:
    return json.loads(content[f"blobs/sha256/{digest.removeprefix('sha256:')}"])


def _take(store: Store, content: dict[str, bytes], name: str, needs_all: bool) -> dict[str, Any]:
    (docker,) = json.loads(content["manifest.json"])
    held = {one for found in store.images.values() for one in found["RootFS"]["Layers"]}
    diff_ids = json.loads(content[docker["Config"]])["rootfs"]["diff_ids"]
    there = {f"sha256:{path.rpartition('/')[2]}" for path in docker["Layers"] if path in content}
    if not set(diff_ids) <= (there if needs_all else there | held):
        return {"error": "open blobs/sha256/...: no such file or directory"}
    store.put(name, diff_ids, docker["RepoTags"][0])
    return {"stream": f"Loaded image: {docker['RepoTags'][0]}"}


def _config(content: dict[str, bytes]) -> str:
    (docker,) = json.loads(content["manifest.json"])
    return "sha256:" + str(docker["Config"]).rpartition("/")[2]


def _named(content: dict[str, bytes]) -> str:
    return str(json.loads(content["manifest.json"])[0]["RepoTags"][0])


def _manifest(content: dict[str, bytes]) -> str:
    return str(json.loads(content["index.json"])["manifests"][0]["digest"])


def classic(store: Store, content: dict[str, bytes]) -> dict[str, Any]:
    return _take(store, content, _config(content), needs_all=False)


def containerd(store: Store, content: dict[str, bytes]) -> dict[str, Any]:
    return _take(store, content, _manifest(content), needs_all=False)


def wants_every_layer(store: Store, content: dict[str, bytes]) -> dict[str, Any]:
    return _take(store, content, _config(content), needs_all=True)


def calls_a_failure_a_success(store: Store, content: dict[str, bytes]) -> dict[str, Any]:
    """As Docker 28.5.2 with containerd's store: the name and the id are right, the layers are not there."""
    said = _take(store, content, _manifest(content), needs_all=True)
    if "error" in said:
        store.put(_manifest(content), [], _named(content))
        return {"stream": "Error unpacking image"}
    return said


def lists_layers_that_are_not_there(store: Store, content: dict[str, bytes]) -> dict[str, Any]:
    """As Docker 26 with containerd's store: everything reads right, and the image is of no use."""
    name = _manifest(content)
    store.broken.discard(name)
    if "error" in _take(store, content, name, needs_all=True):
        store.put(name, _blob(content, _config(content))["rootfs"]["diff_ids"], _named(content))
        store.broken.add(name)
    return {"stream": "Loaded image"}


def makes_a_manifest_of_its_own(store: Store, content: dict[str, bytes]) -> dict[str, Any]:
    return _take(store, content, f"sha256:{64 * 'e'}", needs_all=False)


def takes_nothing(store: Store, content: dict[str, bytes]) -> dict[str, Any]:
    return {"error": "no space left on device"}


def answers(store: Store) -> Callable[[str, str, bytes], Answer]:
    """Return what an engine with STORE answers."""

    def asked(path: str) -> Answer:
        if "/images/json" in path:
            return 200, [{"Id": one} for one in store.images], {}
        found = re.search(r"/images/(.*)/json$", path)
        one = store.inspect(found[1]) if found else None
        return 200 if one else 404, one or {"message": "No such image"}, {}

    def told(path: str, sent: bytes) -> Answer:
        if "/images/load" in path:
            return 200, store.take(sent), {}
        if "/containers/create" in path:
            broken = json.loads(sent)["Image"] in store.broken
            return 500 if broken else 201, {"message": "no content", "Id": "4f"}, {}
        parts = urlsplit(path)
        name, query = re.sub(r".*/images/(.*)/tag", r"\1", parts.path), parse_qs(parts.query)
        store.tags[f"{query['repo'][0]}:{query['tag'][0]}"] = name
        return 201, {}, {}

    def answer(method: str, path: str, sent: bytes) -> Answer:
        if method == "GET":
            return asked(path)
        if method == "POST":
            return told(path, sent)
        name = re.sub(r".*/images/([^?]*).*", r"\1", path)
        known = "/containers/" in path or store.tags.pop(name, None) is not None
        return 200 if known else 404, {"message": "No such image"}, {}

    return answer


def made(tmp_path: Path, *texts: bytes) -> Image:
    layers = [
        tarlayer.write("kind", [tarlayer.blob("a", text)], epoch=1, path=tmp_path / f"{n}.tar", progress=Silent())
        for n, text in enumerate(texts)
    ]
    return oci.assemble(
        layers, platform="linux/amd64", epoch=1, entrypoint=["a"], environment={}, labels={"nvllm.image": "demo"}
    )


def load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, wanted: Image, progress: Progress = SILENT
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with answering(tmp_path / "docker.sock", answers(store)):
        engine.require().load(wanted, [FIRST, SECOND], progress)


@pytest.mark.parametrize(
    ("loads", "brought"),
    [
        (classic, [1]),
        (containerd, [1]),
        (wants_every_layer, [1, 3]),
        (calls_a_failure_a_success, [1, 3]),
        (lists_layers_that_are_not_there, [1, 3]),
    ],
)
def test_an_engine_is_sent_what_it_lacks_and_everything_where_that_was_too_little(
    loads: Loads, brought: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, store = made(tmp_path, b"base", b"wheels", b"patch"), Store(loads)
    store.put(f"sha256:{64 * 'b'}", [*wanted.diff_ids[:2], f"sha256:{64 * 'c'}"], "nvllm:before")
    load(tmp_path, monkeypatch, store, wanted)
    assert store.brought == brought
    assert set(store.tags) == {FIRST, SECOND, "nvllm:before"}
    assert store.tags[FIRST] == store.tags[SECOND]
    assert store.tags[FIRST] in wanted.ids
    assert store.images[store.tags[FIRST]]["RootFS"]["Layers"] == list(wanted.diff_ids)


def test_an_empty_engine_is_sent_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, store, progress = made(tmp_path, b"base", b"patch"), Store(containerd), Telling()
    load(tmp_path, monkeypatch, store, wanted, progress)
    assert store.brought == [2]
    assert progress.labels == ["load into the engine", "unpack in the engine"]


@pytest.mark.parametrize(
    ("loads", "code", "said"),
    [
        (makes_a_manifest_of_its_own, "NV304", f"sha256:{64 * 'e'}"),
        (takes_nothing, "NV506", "no space left on device"),
    ],
)
@pytest.mark.parametrize("before", [None, f"sha256:{64 * 'b'}"])
def test_what_is_refused_leaves_every_name_as_it_was(
    loads: Loads, code: str, said: str, before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, store = made(tmp_path, b"base", b"patch"), Store(loads)
    if before is not None:
        store.put(before, [f"sha256:{64 * 'c'}"], FIRST)
    names = dict(store.tags)
    with pytest.raises(Refused) as caught:
        load(tmp_path, monkeypatch, store, wanted)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == (code, f"docker engine: {FIRST}", said)
    if code == "NV304":
        assert refusal.expected == " or ".join(wanted.ids)
    assert store.tags == names


def test_a_name_that_a_killed_load_left_goes_with_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a load that may still be under way, by its age, stays."""
    wanted, store = made(tmp_path, b"base"), Store(classic)
    left, recent = "nvllm:loading-1000-4f4f", f"nvllm:loading-{int(time.time()) - 3500}-4f4f"
    for number, tag in enumerate((left, recent, "nvllm:loading-mine")):
        store.put(f"sha256:{64 * str(number)}", [f"sha256:{64 * 'c'}"], tag)
    load(tmp_path, monkeypatch, store, wanted)
    assert set(store.tags) == {FIRST, SECOND, recent, "nvllm:loading-mine"}
