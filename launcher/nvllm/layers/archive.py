"""The archive that an engine loads an image from, as a stream; it fits every supported engine.

Docker's classic image store reads ``manifest.json`` and uses the configuration's digest as id. A containerd image
store reads ``index.json`` and uses the manifest's digest; without that file it would write a manifest of its own, with
another digest. Podman reads either. Both files refer to the same blobs.
"""

from __future__ import annotations

import contextlib
import io
import secrets
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nvllm.core import archives, canonical
from nvllm.core.canonical import Json
from nvllm.layers.oci import LAYER, LAYOUT, Descriptor, Image, blob, sha256
from nvllm.layers.tarlayer import Layer

_CHUNK = 1 << 20
_DOCUMENT = 4 << 20
"""Bytes of the largest manifest that registries take; what is larger in an archive is a layer."""

_DOCUMENTS = 64 << 20
"""Most bytes of all documents in an archive that an engine saved."""

HUB = "docker.io/library/"
"""The prefix of image names without a registry. Containerd needs it; Docker leaves it out of the names that it lists,
Podman does not."""

_LOADING = "nvllm:loading-"
"""Begins the name of an image while it is loaded; the second of the load's start and a random word follow."""


def temporary(now: float) -> str:
    """Return a name of its own for an image whose load begins NOW."""
    return f"{_LOADING}{int(now)}-{secrets.token_hex(6)}"


def left(tags: Iterable[str], before: float) -> Iterator[str]:
    """Yield those of TAGS that `temporary` made BEFORE: their loads were killed and could not remove them."""
    for tag in tags:
        began = tag.removeprefix(_LOADING).partition("-")[0]
        if tag.startswith(_LOADING) and began.isdecimal() and int(began) < before:
            yield tag


def size(image: Image, skip: int) -> int:
    """Return the bytes of the layers of IMAGE without its SKIP lowest ones."""
    return sum(layer.size for layer in sent(image, skip))


def sent(image: Image, skip: int) -> tuple[Layer, ...]:
    """Return the layers of IMAGE without its SKIP lowest ones, equal layers once."""
    upper = image.layers[max(0, skip - len(image.below)) :]
    return tuple({layer.diff_id: layer for layer in upper}.values())


def stream(image: Image, tag: str, skip: int) -> Iterator[bytes]:
    """Yield IMAGE, to be named TAG, without the bytes of its SKIP lowest layers.

    An engine does not read the blob of a layer that it holds, so an image with one new small layer loads at once. An
    engine that needs a skipped blob refuses, or loads an image that lacks layers; the caller has to check the result,
    and send everything (SKIP 0) then. The archive has one name only: with two, its index has two entries, and Podman
    loads neither.
    """
    manifest = image.manifest
    if manifest is not None:
        yield from _file("oci-layout", LAYOUT)
        yield from _file("index.json", image.index(manifest, {"io.containerd.image.name": f"{HUB}{tag}"}))
        yield from _file(blob(sha256(manifest)), manifest)
    yield from _file(blob(image.id), image.config)
    docker: Json = [
        {"Config": blob(image.id), "RepoTags": [tag], "Layers": [blob(diff_id) for diff_id in image.diff_ids]}
    ]
    yield from _file("manifest.json", canonical.encode(docker))
    for layer in sent(image, skip):
        yield from entry(blob(layer.diff_id), _chunks(layer.path), layer.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def blobs(saved: Iterator[bytes], diff_ids: Sequence[str]) -> tuple[Descriptor, ...] | None:
    """Return the blobs of the layers DIFF_IDS in SAVED, an archive that an engine saved; None if it names none.

    Reads an OCI manifest or Docker's own, and trusts it only if its configuration names exactly DIFF_IDS. Only JSON
    documents and sizes are kept in memory. Raises tarfile.TarError for a torn archive, or one with too many documents.
    """
    documents: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    left = _DOCUMENTS
    stream = archives.Bounded(Chunks(saved), archives.WHEEL)
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in archives.members(tar, archives.WHEEL):
            sizes[member.name] = member.size
            stored = tar.extractfile(member) if member.isreg() and member.size <= _DOCUMENT else None
            with contextlib.suppress(ValueError):
                data = stored.read() if stored is not None else b""
                documents[member.name] = documents[sha256(data)] = canonical.decode(data)
                left -= len(data)
            if left < 0:
                raise tarfile.ReadError(f"more than {_DOCUMENTS} bytes of documents")
    for document in list(documents.values()):
        with contextlib.suppress(KeyError, TypeError, IndexError, ValueError):  # another document or image
            if isinstance(document, list):
                config, layers = document[0]["Config"], zip(diff_ids, document[0]["Layers"], strict=True)
                listed = tuple(Descriptor(LAYER, diff_id, sizes[name]) for diff_id, name in layers)
            else:
                config, layers = document["config"]["digest"], document["layers"]
                listed = tuple(_descriptor(layer) for layer in layers)
            if documents[config]["rootfs"]["diff_ids"] == list(diff_ids):
                return listed
    return None


def _descriptor(layer: Any) -> Descriptor:
    """Return the descriptor LAYER of a manifest. Raises ValueError for another form."""
    match layer:
        case {"mediaType": str(kind), "digest": str(digest), "size": int(size)}:
            return Descriptor(kind, digest, size)
    raise ValueError("no descriptor of a layer")


class Chunks(io.RawIOBase):
    """A readable file over CHUNKS. A read returns the next of them, whatever its size, which suffices for tarfile."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)

    def read(self, _size: int = -1) -> bytes:
        return next(self._chunks, b"")


def _file(name: str, data: bytes) -> Iterator[bytes]:
    return entry(name, [data], len(data))


def entry(name: str, chunks: Sequence[bytes] | Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the tar entry of the file NAME, which has SIZE bytes: its header, CHUNKS, and what fills the last block."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, 0, 0o644
    # GNU format, for files of 8 GiB and more: layers of CUDA images are that large.
    yield info.tobuf(format=tarfile.GNU_FORMAT)
    yield from chunks
    if size % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - size % tarfile.BLOCKSIZE)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
