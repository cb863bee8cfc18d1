"""What images hold, for comparing: an OCI layout, an archive, a directory of layers, or an image of the engine.

Opening an image reads its JSON documents only. A layer is read when somebody asks for it.
"""

from __future__ import annotations

import functools
import gzip
import posixpath
import shlex
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from nvllm.core import archives, canonical, reading
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.engine.engine import Engine
from nvllm.layers import oci
from nvllm.layers.cache import LayerCache
from nvllm.layers.tarlayer import Layer

_CHUNK = 1 << 20
_DOCUMENT = 16 << 20
"""Bytes of the largest document of an image that is read. Registries take manifests of 4 MiB."""

_GZIP = b"\x1f\x8b"

_TORN = (OSError, ValueError, KeyError, TypeError, IndexError, tarfile.TarError, EOFError)
"""The exceptions of a layout or an archive that lacks something or is damaged."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """SIZE bytes from OFFSET of the file PATH."""

    path: Path
    offset: int
    size: int

    def open(self) -> BinaryIO:
        """Return the file, open where the bytes begin."""
        stream = reading.stream(self.path)
        stream.seek(self.offset)
        return stream

    def head(self, size: int) -> bytes:
        """Return the first SIZE bytes, fewer if there are not as many."""
        with self.open() as stream:
            return stream.read(min(size, self.size))

    def document(self) -> Any:
        """Return the JSON document that the bytes are. Raises ValueError if they are none, or more than any has."""
        if self.size > _DOCUMENT:
            raise ValueError(f"a document of {self.size} bytes")
        return canonical.decode(self.head(self.size))

    def copy(self, path: Path) -> None:
        """Write the bytes to PATH."""
        with self.open() as stream, path.open("wb") as out:
            left = self.size
            while left and (data := stream.read(min(left, _CHUNK))):
                out.write(data)
                left -= len(data)


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of an image: its name, unique in the image, its diff_id, and what returns its uncompressed tar."""

    name: str
    diff_id: str
    tar: Callable[[], FileRange]


@dataclass(frozen=True, slots=True)
class Contents:
    """An image as it is compared. CONFIGURATION is without layers and history; None for layers without an image."""

    label: str
    configuration: Mapping[str, Json] | None
    layers: tuple[StoredLayer, ...]


Blobs: TypeAlias = Callable[[str], FileRange]
"""Returns the file of a layout or an archive by its name in it. Raises KeyError or OSError if there is none."""


def stored(reference: str, scratch: Path) -> Contents | None:
    """Return the image at the path REFERENCE, a layout, an archive or a directory of layers; None if there is nothing.

    Files that have to be written go to SCRATCH, which has to stay until the last layer is read. Raises Refused NV306 if
    it is none of these, or damaged.
    """
    path = Path(reference)
    if not reference or not path.exists():
        return None
    try:
        if path.is_dir():
            return _directory(path, scratch)
        return _archive(path, reference, scratch)
    except _TORN as error:
        cure = "write it again: nvllm build IMAGE --layout DIR"
        problem = f"{type(error).__name__}: {error}"
        raise refuse("NV306", str(path), "an OCI layout, or an archive of an image", problem, cure) from error


def of_layers(label: str, layers: Sequence[Layer]) -> Contents:
    """Return LAYERS, just made or in the layer cache, without an image around them."""
    return Contents(
        label, None, tuple(StoredLayer(layer.kind, layer.diff_id, partial(_file, layer.path)) for layer in layers)
    )


def of_image(label: str, image: oci.Image) -> Contents:
    """Return IMAGE, all of whose own layers are in the layer cache."""
    config = cast("Mapping[str, Any]", canonical.decode(image.config))
    return Contents(label, _configuration(config), of_layers(label, image.layers).layers)


def of_engine(reference: str, engine: Engine, cache: LayerCache, scratch: Path) -> Contents:
    """Return the image REFERENCE of ENGINE.

    A layer that is read comes from CACHE if that has it. Else the engine saves the whole image to SCRATCH, once: its
    API gives no single layer. Raises Refused NV108 if the engine has no such image.
    """
    config = engine.description(reference)
    if config is None:
        cure = "name a directory, an archive or a tag that is there: docker images nvllm"
        raise refuse(
            "NV108",
            shlex.quote(reference),
            "an OCI layout, an archive, or an image of the engine",
            "none of these",
            cure,
        )

    @functools.cache
    def saved() -> Mapping[str, StoredLayer]:
        path = scratch / f"{config['id'].replace(':', '-')}.tar"
        engine.save(reference, path)
        return {layer.diff_id: layer for layer in _archive(path, reference, scratch).layers}

    def tar(diff_id: str) -> FileRange:
        cached = cache.holding(diff_id)
        return _file(cached) if cached is not None else saved()[diff_id].tar()

    diff_ids = config["rootfs"]["diff_ids"]
    names = _names(config, len(diff_ids))
    layers = (StoredLayer(name, diff_id, partial(tar, diff_id)) for name, diff_id in zip(names, diff_ids, strict=True))
    return Contents(reference, _configuration(config), tuple(layers))


def _directory(path: Path, scratch: Path) -> Contents:
    if not (path / "layers.json").exists():
        return _image(str(path), lambda name: _file(path / name), scratch)
    listed = _file(path / "layers.json").document()["layers"]
    files = ((layer["kind"], layer["diff_id"], path / oci.blob(layer["diff_id"])) for layer in listed)
    return Contents(
        str(path), None, tuple(StoredLayer(kind, digest, partial(_file, file)) for kind, digest, file in files)
    )


def _file(path: Path) -> FileRange:
    return FileRange(path, 0, path.stat().st_size)


def _archive(path: Path, label: str, scratch: Path) -> Contents:
    with reading.stream(path) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        entries = archives.members(tar, archives.WHEEL)
        members = {member.name.removeprefix("./"): member for member in entries}

    def blob(name: str) -> FileRange:
        member = members[name]
        if member.issym():  # Docker names a layer that two images share by a link
            member = members[posixpath.normpath(f"{posixpath.dirname(name)}/{member.linkname}")]
        return FileRange(path, member.offset_data, member.size)

    return _image(label, blob, scratch)


def _image(label: str, blobs: Blobs, scratch: Path) -> Contents:
    """Return the image that the OCI index, or Docker's manifest, names among BLOBS."""
    try:
        config, stored = _oci(label, blobs)
    except (KeyError, FileNotFoundError):  # Docker's classic image store saves no index
        (saved, *others) = blobs("manifest.json").document()
        _single(label, len(others) + 1)
        config, stored = blobs(saved["Config"]).document(), saved["Layers"]
    diff_ids = config["rootfs"]["diff_ids"]
    layers = [
        StoredLayer(name, diff_id, partial(_uncompressed, label, blobs, place, diff_id, scratch))
        for name, diff_id, place in zip(_names(config, len(diff_ids)), diff_ids, stored, strict=True)
    ]
    return Contents(label, _configuration(config), tuple(layers))


def _oci(label: str, blobs: Blobs) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration of the one image in BLOBS, and the names of its layers."""
    manifests = blobs("index.json").document()["manifests"]
    while True:
        # An index of attestations beside the image: BuildKit calls their platform unknown.
        images = [descriptor for descriptor in manifests if descriptor.get("platform", {}).get("os") != "unknown"]
        _single(label, len(images))
        manifest = blobs(oci.blob(images[0]["digest"])).document()
        if "manifests" not in manifest:
            break
        manifests = manifest["manifests"]
    config = blobs(oci.blob(manifest["config"]["digest"])).document()
    return config, [oci.blob(layer["digest"]) for layer in manifest["layers"]]


def _single(label: str, number: int) -> None:
    if number != 1:
        cure = f"write one image alone: docker save TAG > {label}"
        raise Refused([Refusal("NV108", label, "one image", f"{number} images", cure)])


def _names(config: Mapping[str, Any], number: int) -> list[str]:
    """Return the names of the NUMBER layers of the image CONFIG: those that nvllm gave them, else numbers."""
    made = [entry.get("created_by", "") for entry in config.get("history") or () if not entry.get("empty_layer")]
    names: list[str] = []
    for position in range(number):
        kind = oci.kind_in(made[position]) if len(made) == number else None
        name = kind if kind is not None else f"number {position + 1}"
        names.append(f"{name} ({position + 1})" if name in names else name)
    return names


_COMPARED = ("architecture", "author", "config", "created", "os", "variant")


def _configuration(config: Mapping[str, Any]) -> dict[str, Json]:
    """Return what is compared of the configuration CONFIG, without empty values, which engines add.

    Layers are compared in their own right, and history only names them.
    """
    known = {name: config[name] for name in _COMPARED if config.get(name)}
    return {**known, "config": {name: value for name, value in known.get("config", {}).items() if value}}


def _uncompressed(label: str, blobs: Blobs, name: str, diff_id: str, scratch: Path) -> FileRange:
    """Return the tar of the layer NAME of BLOBS, unpacked to SCRATCH if it is in gzip. Raises Refused NV306."""
    try:
        blob = blobs(name)
        if blob.head(len(_GZIP)) != _GZIP:
            return blob
        packed, out = (scratch / f"{diff_id.replace(':', '-')}{suffix}" for suffix in (".gz", ".tar"))
        blob.copy(packed)
        _unpack(packed, out)
    except (KeyError, FileNotFoundError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        cure = f"write it again, and name that instead of {label}"
        raise refuse("NV306", f"{label}: {name}", "a layer", f"{type(error).__name__}: {error}", cure) from error
    return _file(out)


def _unpack(packed: Path, out: Path) -> None:
    """Unpack the gzip file PACKED to OUT. Raises EOFError for more bytes than a layer may have."""
    with gzip.open(packed) as unpacked, out.open("wb") as file:
        while chunk := unpacked.read(_CHUNK):
            file.write(chunk)
            if file.tell() > archives.WHEEL:
                raise EOFError(f"more than {archives.WHEEL} bytes when it is unpacked")
