"""An image as the stream that an engine loads: one archive that each engine reads in its own way.

Docker's classic image store reads ``manifest.json`` and calls the image by its configuration. A containerd image
store reads ``index.json`` and calls the image by its manifest, which is ours only because it is there: from
``manifest.json`` alone it would make one of its own. Podman reads either. Both lie over the same blobs.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.image.oci import LAYER, LAYOUT, Descriptor, Image, sha256
from nvllm.layers.tar import Layer

_CHUNK = 1 << 20
_DOCUMENT = 4 << 20
"""Bytes of the largest manifest that registries take; what is larger in an archive is a layer."""

HUB = "docker.io/library/"
"""What engines put before a name that says no registry. Containerd takes only whole names; of the names that they list
Docker leaves it out, and Podman does not."""


def sent(image: Image, skip: int) -> tuple[Layer, ...]:
    """Return the layers of IMAGE that are sent when its SKIP lowest are not, each content once."""
    upper = image.layers[max(0, skip - len(image.below)) :]
    return tuple({layer.diff_id: layer for layer in upper}.values())


def stream(image: Image, tag: str, skip: int) -> Iterator[bytes]:
    """Yield IMAGE, to be named TAG, without the bytes of its SKIP lowest layers.

    An engine does not open the blob of a layer that it holds, so that an image with one new small layer loads in a
    blink. One that does want it refuses, or loads an image that lacks layers; whoever sends looks afterwards, and
    sends everything that there is: with SKIP 0. One name only: the index of an archive with two would have two
    entries, and Podman takes none of them.
    """
    manifest = image.manifest
    if manifest is not None:
        yield from _file("oci-layout", LAYOUT)
        yield from _file("index.json", image.index(manifest, {"io.containerd.image.name": f"{HUB}{tag}"}))
        yield from _file(_blob(sha256(manifest)), manifest)
    yield from _file(_blob(image.id), image.config)
    docker: Json = [{"Config": _blob(image.id), "RepoTags": [tag], "Layers": [_blob(one) for one in image.diff_ids]}]
    yield from _file("manifest.json", canonical.encode(docker))
    for layer in sent(image, skip):
        yield from entry(_blob(layer.diff_id), _chunks(layer.path), layer.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def blobs(saved: Iterator[bytes], diff_ids: Sequence[str]) -> tuple[Descriptor, ...] | None:
    """Return the blobs of the layers DIFF_IDS, by what SAVED, an archive of an engine, says that it holds; or None.

    That is an OCI manifest, or Docker's own. Either is believed because its configuration names the layers. Only
    documents and sizes are kept.
    """
    documents: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    with tarfile.open(fileobj=_Chunks(saved), mode="r|") as tar:
        for member in tar:
            sizes[member.name] = member.size
            stored = tar.extractfile(member) if member.isreg() and member.size <= _DOCUMENT else None
            with contextlib.suppress(ValueError):
                data = stored.read() if stored is not None else b""
                documents[member.name] = documents[sha256(data)] = json.loads(data)
    for one in list(documents.values()):
        with contextlib.suppress(KeyError, TypeError, IndexError, ValueError):  # another document, or of another image
            if isinstance(one, list):
                config, found = one[0]["Config"], zip(diff_ids, one[0]["Layers"], strict=True)
                listed = tuple(Descriptor(LAYER, diff_id, sizes[name]) for diff_id, name in found)
            else:
                config, found = one["config"]["digest"], one["layers"]
                listed = tuple(Descriptor(layer["mediaType"], layer["digest"], layer["size"]) for layer in found)
            if documents[config]["rootfs"]["diff_ids"] == list(diff_ids):
                return listed
    return None


class _Chunks(io.RawIOBase):
    """CHUNKS as a file that is read once."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _file(name: str, data: bytes) -> Iterator[bytes]:
    return entry(name, [data], len(data))


def entry(name: str, chunks: Sequence[bytes] | Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the tar entry of the file NAME, which has SIZE bytes: its header, CHUNKS, and what fills the last block."""
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
