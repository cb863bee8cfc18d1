"""Images: a configuration and a list of layers, as a stream that an engine loads or as an OCI layout.

The image id is the sha256 of the configuration, which names the layers by diff_id, so it is the same wherever
the image is made. Layer bytes are never compressed here.
"""

from __future__ import annotations

import datetime
import hashlib
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm import canonical, durable
from nvllm.canonical import Json
from nvllm.tarlayer import Layer

_CHUNK = 1 << 20
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image: its configuration (canonical JSON), its id, and its layers from the bottom up."""

    config: bytes
    layers: tuple[Layer, ...]
    below: tuple[str, ...] = ()
    """The diff_ids of the layers under these, which are those of a base that only an engine holds."""

    @property
    def id(self) -> str:
        return "sha256:" + hashlib.sha256(self.config).hexdigest()

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return (*self.below, *(layer.diff_id for layer in self.layers))


def timestamp(epoch: int) -> str:
    """Return EPOCH, seconds since 1970, as images write it."""
    return datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def assemble(
    layers: Sequence[Layer],
    *,
    platform: str,
    epoch: int,
    entrypoint: Sequence[str],
    environment: Mapping[str, str],
    labels: Mapping[str, str],
    below: Sequence[str] = (),
) -> Image:
    """Return the image of LAYERS on the layers BELOW. Nothing in it depends on the time, the host or the user."""
    system, _, architecture = platform.partition("/")
    created = timestamp(epoch)
    kinds = [*("base" for _ in below), *(layer.kind for layer in layers)]
    history = [{"created": created, "created_by": f"nvllm layer {kind}"} for kind in kinds]
    config: Json = {
        "architecture": architecture,
        "os": system,
        "created": created,
        "config": {
            "Entrypoint": list(entrypoint),
            "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
            "Labels": dict(labels),
            "User": "65534:65534",  # never root, also for those who run the image without nvllm
            "WorkingDir": "/",
        },
        "history": history,
        "rootfs": {"type": "layers", "diff_ids": [*below, *(layer.diff_id for layer in layers)]},
    }
    return Image(canonical.encode(config), tuple(layers), tuple(below))


def common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many diff_ids ONE and OTHER have in common, from the bottom up."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def archive(image: Image, tags: Sequence[str], skip: int) -> Iterator[bytes]:
    """Yield IMAGE as a docker-archive, leaving out the bytes of the SKIP lowest layers.

    The classic image store does not open the file of a layer whose chain it already holds, so that an image
    with one new small layer loads in a blink. A store that does want them refuses the archive; the caller then
    sends everything that there is: with SKIP as many as lie below.
    """
    hexes = [diff_id.removeprefix("sha256:") for diff_id in image.diff_ids]
    name = image.id.removeprefix("sha256:") + ".json"
    manifest: Json = [{"Config": name, "RepoTags": list(tags), "Layers": [f"{digest}/layer.tar" for digest in hexes]}]
    yield from _member(name, [image.config], len(image.config))
    text = canonical.encode(manifest)
    yield from _member("manifest.json", [text], len(text))
    below = len(image.below)
    for digest, layer in list(zip(hexes[below:], image.layers, strict=True))[skip - below :]:
        yield from _member(f"{digest}/layer.tar", _chunks(layer.path), layer.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, chunks: Sequence[bytes] | Iterator[bytes], size: int) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, 0, 0o644
    # GNU format: a size field of 8 GiB and more, which layers of CUDA images reach.
    yield info.tobuf(format=tarfile.GNU_FORMAT)
    yield from chunks
    if size % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - size % tarfile.BLOCKSIZE)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def write_layout(image: Image, reference: str, platform: str, epoch: int, directory: Path) -> str:
    """Write IMAGE as an OCI layout at DIRECTORY, and return the manifest's digest.

    Layers are hard links into the layer cache where the file system allows, else copies. Raises Refused as
    `durable.appearing` does.
    """
    system, _, architecture = platform.partition("/")
    with durable.appearing(directory, "--layout") as partial:
        blobs = _lay(image.layers, partial)
        manifest = canonical.encode(
            {
                "schemaVersion": 2,
                "mediaType": f"{_OCI}.manifest.v1+json",
                "config": _blob(blobs, image.config, f"{_OCI}.config.v1+json"),
                "layers": [
                    {"mediaType": f"{_OCI}.layer.v1.tar", "digest": layer.diff_id, "size": layer.size}
                    for layer in image.layers
                ],
                "annotations": {"org.opencontainers.image.created": timestamp(epoch)},
            }
        )
        entry = {
            **_blob(blobs, manifest, f"{_OCI}.manifest.v1+json"),
            "platform": {"os": system, "architecture": architecture},
            "annotations": {"org.opencontainers.image.ref.name": reference},
        }
        index: Json = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [entry]}
        (partial / "oci-layout").write_bytes(canonical.encode({"imageLayoutVersion": "1.0.0"}))
        (partial / "index.json").write_bytes(canonical.encode(index))
    return str(entry["digest"])


def write_layers(layers: Sequence[Layer], about: Json, directory: Path) -> None:
    """Write LAYERS to DIRECTORY, by digest as in an OCI layout, and ABOUT as ``layers.json``.

    Raises Refused as `durable.appearing` does.
    """
    with durable.appearing(directory, "--layout") as partial:
        _lay(layers, partial)
        (partial / "layers.json").write_text(canonical.pretty(about))


def _blob(blobs: Path, data: bytes, media_type: str) -> dict[str, Json]:
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _lay(layers: Sequence[Layer], directory: Path) -> Path:
    """Lay LAYERS by digest below DIRECTORY, equal ones once, and return where."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for digest, layer in {layer.diff_id.removeprefix("sha256:"): layer for layer in layers}.items():
        durable.link(layer.path, blobs / digest)
    return blobs
