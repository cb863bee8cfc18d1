"""An engine's answers: the facts that nvllm takes from their JSON, each checked for its form.

The engine is trusted, but what it passes on is not: labels, names and files of images and containers of anybody. Every
function raises ValueError for an answer of another form; `engine/engine.py` makes that the refusal NV515.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from nvllm.core import archives
from nvllm.host.facts import (
    ContainerFact,
    ContainerState,
    EngineFacts,
    ImageFacts,
    ImageStore,
    Product,
    StoredImage,
)
from nvllm.layers import archive

Object: TypeAlias = Mapping[str, Any]

_SHOWN = 80


class OtherFormError(ValueError):
    """An answer of another form than the engine's API has."""


def chunks(stream: Iterable[bytes], most: int) -> bytes:
    """Return the bytes of STREAM. Raises ValueError for more than MOST."""
    data = bytearray()
    for chunk in stream:
        data += chunk
        if len(data) > most:
            raise OtherFormError(f"more than {most} bytes")
    return bytes(data)


class _Stream(io.RawIOBase):
    """CHUNKS as a file, of which no more is read than is asked for. Raises ValueError beyond MOST bytes."""

    def __init__(self, chunks: Iterable[bytes], most: int) -> None:
        self._chunks, self._left, self._held = iter(chunks), most, b""

    def read(self, size: int = -1) -> bytes:
        while len(self._held) < size and (chunk := next(self._chunks, None)) is not None:
            self._held += chunk
        found, self._held = self._held[:size], self._held[size:]
        self._left -= len(found)
        if self._left < 0:
            raise OtherFormError("a larger file than nvllm reads")
        return found


def file(stream: Iterable[bytes], most: int) -> bytes | None:
    """Return the content of the regular file that STREAM, a tar, begins with; None for another kind of file.

    Raises ValueError and tarfile.TarError for a damaged tar, or one of more than MOST bytes.
    """
    with tarfile.open(fileobj=_Stream(stream, most), mode="r|") as tar:
        member = next(archives.members(tar, most), None)
        stored = tar.extractfile(member) if member is not None and member.isreg() else None
        return stored.read() if stored is not None else None


def product(version: Object) -> Product:
    """Return the product by VERSION, the answer to ``docker version``: Docker, or Podman behind Docker's API."""
    names = [_text(one, "Name").lower() for one in _objects(version, "Components")]
    return "Podman" if any("podman" in name for name in names) else "Docker"


def engine(info: Object, version: Object, bridge: Object) -> EngineFacts:
    """Return the facts in INFO and VERSION; BRIDGE has the options of the network of that name."""
    return EngineFacts(
        version=_text(version, "Version"),
        api_version=_text(version, "ApiVersion"),
        storage_driver=_text(info, "Driver"),
        rootless=any("rootless" in option for option in _texts(info, "SecurityOptions")),
        bridge_interface=_text_or_none(_object(bridge, "Options"), "com.docker.network.bridge.name"),
        product=product(version),
        store=_store(info),
    )


def _store(info: Object) -> ImageStore:
    pairs = info.get("DriverStatus") or ()
    words = [str(word) for pair in pairs if isinstance(pair, Sequence) for word in pair]
    return "containerd" if any("io.containerd.snapshotter" in word for word in words) else "its own"


def image(found: Object) -> ImageFacts:
    """Return the facts in FOUND, the answer to the inspection of an image."""
    return ImageFacts(
        id=_text(found, "Id"),
        diff_ids=_texts(_object(found, "RootFS"), "Layers"),
        tags=tuple(one.removeprefix(archive.HUB) for one in _texts(found, "RepoTags")),
        size=_number(found, "Size"),
        platform=f"{_text(found, 'Os')}/{_text(found, 'Architecture')}",
        digests=_texts(found, "RepoDigests"),
    )


def stored(found: Object, history: object) -> StoredImage:
    """Return the image FOUND, the answer to its inspection, with the sizes that its HISTORY gives its layers.

    A history has more entries than the image has layers where some changed no file; those have no size. If it still
    does not fit, the lowest layer, which other images share most often, is taken for the whole image.
    """
    facts = image(found)
    sizes = [_number(entry, "Size") for entry in reversed(_list(history, "history"))]
    if len(sizes) != len(facts.diff_ids):
        sizes = [size for size in sizes if size]
    if len(sizes) != len(facts.diff_ids):
        sizes = [facts.size, *[0] * (len(facts.diff_ids) - 1)]
    return StoredImage(facts, tuple(zip(_chain_ids(facts.diff_ids), sizes, strict=False)))


def _chain_ids(diff_ids: Sequence[str]) -> Iterator[str]:
    """Yield what names each layer above those below it, as the OCI image specification computes it."""
    chain = ""
    for diff_id in diff_ids:
        chain = f"sha256:{hashlib.sha256(f'{chain} {diff_id}'.encode()).hexdigest()}" if chain else diff_id
        yield chain


def ids(found: object) -> tuple[str, ...]:
    """Return the ids in FOUND, a list of images."""
    return tuple(_text(one, "Id") for one in _list(found, "images"))


def description(found: Object, history: object) -> Object:
    """Return the image FOUND, with HISTORY as the engine answers it, in the form of an OCI configuration."""
    return {
        "id": _text(found, "Id"),
        "architecture": _text(found, "Architecture"),
        "os": _text(found, "Os"),
        "variant": _text_or_none(found, "Variant"),
        "author": _text_or_none(found, "Author"),
        "created": _text_or_none(found, "Created"),
        "config": _object(found, "Config"),
        "history": [{"created_by": _text(one, "CreatedBy")} for one in reversed(_list(history, "history"))],
        "rootfs": {"diff_ids": list(_texts(_object(found, "RootFS"), "Layers"))},
    }


def containers(found: object) -> tuple[ContainerFact, ...]:
    """Return the containers in FOUND, the engine's list of them."""
    return tuple(
        ContainerFact(
            name=next(iter(_texts(one, "Names")), "/").removeprefix("/"),
            labels=_labels(one),
            running=one.get("State") == "running",
            id=_text(one, "Id"),
        )
        for one in _list(found, "containers")
    )


def state(found: Object, ended: frozenset[str]) -> ContainerState:
    """Return the state in FOUND, the inspection of a container, which has ended if its status is in ENDED."""
    said = _object(found, "State")
    running = _text(said, "Status") not in ended
    networks = _object(_object(found, "NetworkSettings"), "Networks")
    addresses = (_text_or_none(_object(networks, name), "IPAddress") for name in networks)
    return ContainerState(
        None if running else _number(said, "ExitCode"),
        bool(said.get("OOMKilled")),
        next((address for address in addresses if address), None),
    )


def memory(found: Object) -> int | None:
    """Return the peak of memory in FOUND, statistics of a container, in bytes; None if it is not there."""
    return _number(_object(found, "memory_stats"), "max_usage") or None


def processor(found: Object) -> float:
    """Return the processor time in FOUND, statistics of a container, in seconds."""
    return _number(_object(_object(found, "cpu_stats"), "cpu_usage"), "total_usage") / 10**9


def errors(lines: object) -> str:
    """Return the errors in LINES, the answers to a load or a pull, as one text."""
    return "; ".join(str(one["error"])[: _SHOWN * 5] for one in _list(lines, "answers") if "error" in one)


def _labels(found: Object) -> Mapping[str, str]:
    labels = _object(found, "Labels")
    if not all(isinstance(value, str) for value in labels.values()):
        raise OtherFormError(f"Labels: texts are missing in {str(labels)[:_SHOWN]}")
    return labels


def _list(found: object, what: str) -> list[Object]:
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        raise OtherFormError(f"{what}: a list is missing in {str(found)[:_SHOWN]}")
    return [_checked(one, what) for one in found]


def _objects(found: Object, key: str) -> list[Object]:
    return _list(found.get(key) or (), key)


def _checked(found: object, what: str) -> Object:
    if not isinstance(found, Mapping):
        raise OtherFormError(f"{what}: an object is missing in {str(found)[:_SHOWN]}")
    return found


def _object(found: object, key: str) -> Object:
    return _checked(_checked(found, key).get(key) or {}, key)


def _text(found: object, key: str) -> str:
    value = _checked(found, key).get(key)
    if not isinstance(value, str):
        raise OtherFormError(f"{key}: a text is missing in {str(found)[:_SHOWN]}")
    return value


def _text_or_none(found: Object, key: str) -> str | None:
    return _text(found, key) if found.get(key) is not None else None


def _texts(found: object, key: str) -> tuple[str, ...]:
    values = _checked(found, key).get(key) or ()
    if not isinstance(values, list | tuple) or not all(isinstance(one, str) for one in values):
        raise OtherFormError(f"{key}: a list of texts is missing in {str(values)[:_SHOWN]}")
    return tuple(values)


def _number(found: Object, key: str) -> int:
    value = found.get(key) or 0
    if not isinstance(value, int):
        raise OtherFormError(f"{key}: a whole number is missing in {str(value)[:_SHOWN]}")
    return value
