"""What reads what comes through a registry: images and blessings that it offers; and how Docker's client is set up."""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import mock

import httpx2

from nvllm.cache import manifest as bless_manifest
from nvllm.cache.store import TreeStore
from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine import endpoint
from nvllm.engine.engine import Engine
from nvllm.fleet import blessings, credentials, images, registry
from nvllm.fleet.registry import Repository, RepositoryName
from nvllm.layers import oci, tarlayer
from nvllm.layers.tarlayer import TarEntry
from support import blessings_world
from support.fuzzed import Reader

HOST = "registry.example"
_LAYER = b"\0" * 1024


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Kept:
    """A registry that has BLOBS and MANIFESTS, and REFERRERS of everything."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    referrers: list[Json] = field(default_factory=list)

    def blob(self, data: bytes, kind: str) -> dict[str, Json]:
        """Keep DATA as a blob of KIND, and return what describes it."""
        self.blobs[sha256(data)] = data
        return {"mediaType": kind, "digest": sha256(data), "size": len(data)}

    def manifest(self, data: bytes) -> str:
        self.manifests[sha256(data)] = data
        return sha256(data)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        kind, _, name = request.url.path.removeprefix("/v2/x/").partition("/")
        table: Mapping[str, bytes] = {"blobs": self.blobs, "manifests": self.manifests}.get(kind, {})
        data = canonical.encode({"manifests": self.referrers}) if kind == "referrers" else table.get(name)
        return httpx2.Response(404 if data is None else 200, stream=httpx2.ByteStream(data or b""))

    def repository(self) -> Repository:
        made = _repository()
        client: Any = made.client
        client._mounts, client._transport = {}, httpx2.MockTransport(self.answer)
        return made


@functools.cache
def _repository() -> Repository:
    return Repository(RepositoryName("https", HOST, "x"), None, Silent())


# Images


def _config() -> bytes:
    return canonical.encode(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {"nvllm.image": "demo", "nvllm.build-hash": "5" * 64}},
            "rootfs": {"type": "layers", "diff_ids": [sha256(_LAYER)]},
            "history": [{"created_by": "nvllm layer base"}],
        }
    )


def _image(kept: Kept, config: bytes) -> bytes:
    return canonical.encode(
        {
            "schemaVersion": 2,
            "mediaType": oci.MANIFEST,
            "config": kept.blob(config, oci.CONFIG),
            "layers": [kept.blob(_LAYER, oci.LAYER)],
        }
    )


def _pull_image(data: bytes, kept: Kept) -> None:
    """Pull the image with the manifest DATA into an engine that takes everything. What is written has its place."""
    with tempfile.TemporaryDirectory() as name, mock.patch.object(registry, "BACKOFF", 0.0):
        top = Path(name)
        places, engine = Places(top / "a/b/cache", top / "a/b/state"), cast("Engine", mock.Mock())
        digest = kept.manifest(data)
        try:
            images.pull_image(kept.repository(), digest, None, Project(top), places, engine, Silent())
        finally:
            outside = [one for one in top.rglob("*") if one.is_file() and top / "a/b" not in one.parents]
            assert outside == []


def _offered(path: Path) -> None:
    kept = Kept()
    _image(kept, _config())
    _pull_image(path.read_bytes(), kept)


def _configured(path: Path) -> None:
    kept = Kept()
    _pull_image(_image(kept, path.read_bytes()), kept)


# Blessings


@functools.cache
def _blessed() -> tuple[bless_manifest.Manifest, bytes]:
    """Return the manifest of a small blessed cache, and the layer with its files."""
    with tempfile.TemporaryDirectory() as name:
        store = TreeStore(Path(name, "trees"))
        tree = store.adopt(blessings_world.cache(Path(name, "fresh")), "cure")
        entries = [TarEntry(one.path, "directory") for one in tree.directories if one.path != "."]
        for one in tree.files:
            content = functools.partial(store.path(tree.hash).joinpath(one.path).open, "rb")
            entries.append(
                TarEntry(
                    one.path, "file", 0o555 if one.mode == "0555" else 0o444, one.size, content=cast("Any", content)
                )
            )
        layer = tarlayer.write("blessing", entries, epoch=0, path=Path(name, "layer.tar"), progress=Silent())
        return blessings_world.bless(tree), layer.path.read_bytes()


def _artifact(kept: Kept, manifest: bytes) -> bytes:
    kind = "application/vnd.nvllm.bless-manifest.v1+json"
    return canonical.encode(
        {
            "schemaVersion": 2,
            "mediaType": oci.MANIFEST,
            "artifactType": blessings.ARTIFACT,
            "layers": [kept.blob(manifest, kind)],
        }
    )


def _cache_image(kept: Kept, layer: bytes) -> bytes:
    return canonical.encode({"config": kept.blob(b"{}", oci.CONFIG), "layers": [kept.blob(layer, oci.LAYER)]})


def _pull_blessing(kept: Kept, image: bytes, artifact: bytes) -> None:
    found, _ = _blessed()
    kept.manifests[blessings.tag_of(found.serve_hash)] = image
    kept.referrers.append(
        {"mediaType": oci.MANIFEST, "digest": kept.manifest(artifact), "size": len(artifact), "artifactType": "a/b"}
    )
    with tempfile.TemporaryDirectory() as name, mock.patch.object(registry, "BACKOFF", 0.0):
        top = Path(name)
        places, held = Places(top / "cache", top / "state"), blessings_world.blessings(top / "project")
        try:
            blessings.pull_blessing(kept.repository(), found.serve_hash, None, held, places, Silent())
        except Refused:
            assert held.all() == ()
            raise


def _pulled_artifact(path: Path) -> None:
    kept, (found, layer) = Kept(), _blessed()
    _artifact(kept, bless_manifest.encode(found))
    _pull_blessing(kept, _cache_image(kept, layer), path.read_bytes())


def _pulled_manifest(path: Path) -> None:
    kept, (_, layer) = Kept(), _blessed()
    _pull_blessing(kept, _cache_image(kept, layer), _artifact(kept, path.read_bytes()))


def _pulled_image(path: Path) -> None:
    kept, (found, layer) = Kept(), _blessed()
    kept.blob(layer, oci.LAYER)
    _pull_blessing(kept, path.read_bytes(), _artifact(kept, bless_manifest.encode(found)))


def _pulled_layer(path: Path) -> None:
    kept, (found, _) = Kept(), _blessed()
    _pull_blessing(kept, _cache_image(kept, path.read_bytes()), _artifact(kept, bless_manifest.encode(found)))


# Docker's client

_CONFIGURATION = {"currentContext": "default", "auths": {HOST: {"auth": "bWU6eA=="}}}


def _of_docker(path: Path) -> None:
    env = {"DOCKER_CONFIG": str(path.parent)}
    endpoint.find(env)
    for host in (HOST, "other"):
        credentials.find(host, env)


def _only(read: Callable[[Path], None]) -> Callable[[Path], None]:
    """Let READ find nothing else in the directory."""

    def reads(path: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            read(path.rename(Path(name, path.name)))

    return reads


READERS: Mapping[str, Reader] = {
    "pulled image": Reader("manifest.json", lambda: _image(Kept(), _config()), _offered),
    "pulled configuration": Reader("config.json", _config, _configured),
    "pulled artifact": Reader(
        "artifact.json", lambda: _artifact(Kept(), bless_manifest.encode(_blessed()[0])), _pulled_artifact
    ),
    "pulled blessing": Reader("blessing.json", lambda: bless_manifest.encode(_blessed()[0]), _pulled_manifest),
    "pulled cache image": Reader("image.json", lambda: _cache_image(Kept(), _blessed()[1]), _pulled_image),
    "pulled cache": Reader("cache.tar", lambda: _blessed()[1], _pulled_layer),
    "Docker's configuration": Reader("config.json", lambda: json.dumps(_CONFIGURATION).encode(), _only(_of_docker)),
}
