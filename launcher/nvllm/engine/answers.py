"""An engine's answers: the facts that nvllm takes from their JSON, each checked for its form.

The engine is trusted, but what it passes on is not: labels, names and files of images and containers of anybody. Every
function raises ValueError for an answer of another form; `engine/client.py` makes that the refusal NV515.
"""

from __future__ import annotations

import hashlib
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
    MemoryInUse,
    Product,
    StoredImage,
)
from nvllm.layers import archive

Object: TypeAlias = Mapping[str, Any]

_SHOWN = 80
"""Characters of an answer that a refusal quotes: a line."""
_BEGINNING, _END = 200, 800
"""Characters of an engine's error that are kept where it is longer. What it tried stands first, the reason last."""


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


def file(stream: Iterable[bytes], most: int) -> bytes | None:
    """Return the content of the regular file that STREAM, a tar, begins with; None for another kind of file.

    Raises ValueError and tarfile.TarError for a damaged tar, or one of more than MOST bytes.
    """
    bounded = archives.Bounded(archive.Chunks(stream), most)
    with tarfile.open(fileobj=bounded, mode="r|") as tar:
        member = next(archives.members(tar, most), None)
        stored = tar.extractfile(member) if member is not None and member.isreg() else None
        return stored.read() if stored is not None else None


def product(version: Object) -> Product:
    """Return the product by VERSION, the answer to ``docker version``: Docker, or Podman behind Docker's API."""
    names = [_text(component, "Name").lower() for component in _list(version.get("Components") or (), "Components")]
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


def image(answer: Object) -> ImageFacts:
    """Return the facts in ANSWER, the answer to the inspection of an image."""
    return ImageFacts(
        id=_text(answer, "Id"),
        diff_ids=_texts(_object(answer, "RootFS"), "Layers"),
        tags=tuple(tag.removeprefix(archive.HUB) for tag in _texts(answer, "RepoTags")),
        size=_number(answer, "Size"),
        platform=f"{_text(answer, 'Os')}/{_text(answer, 'Architecture')}",
        digests=_texts(answer, "RepoDigests"),
    )


def stored(answer: Object, history: object) -> StoredImage:
    """Return the image ANSWER, the answer to its inspection, with the sizes that its HISTORY gives its layers.

    A history has more entries than the image has layers where some changed no file; those have no size. If it still
    does not fit, the lowest layer, which other images share most often, is taken for the whole image.
    """
    facts = image(answer)
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


def ids(answer: object) -> tuple[str, ...]:
    """Return the ids in ANSWER, a list of images."""
    return tuple(_text(entry, "Id") for entry in _list(answer, "images"))


def description(answer: Object, history: object) -> Object:
    """Return the image ANSWER, with HISTORY as the engine answers it, in the form of an OCI configuration."""
    return {
        "id": _text(answer, "Id"),
        "architecture": _text(answer, "Architecture"),
        "os": _text(answer, "Os"),
        "variant": _text_or_none(answer, "Variant"),
        "author": _text_or_none(answer, "Author"),
        "created": _text_or_none(answer, "Created"),
        "config": _object(answer, "Config"),
        "history": [{"created_by": _text(entry, "CreatedBy")} for entry in reversed(_list(history, "history"))],
        "rootfs": {"diff_ids": list(_texts(_object(answer, "RootFS"), "Layers"))},
    }


def containers(answer: object) -> tuple[ContainerFact, ...]:
    """Return the containers in ANSWER, the engine's list of them."""
    return tuple(
        ContainerFact(
            name=next(iter(_texts(container, "Names")), "/").removeprefix("/"),
            labels=_labels(container),
            running=container.get("State") == "running",
            id=_text(container, "Id"),
        )
        for container in _list(answer, "containers")
    )


def state(answer: Object, ended: frozenset[str]) -> ContainerState:
    """Return the state in ANSWER, the inspection of a container, which has ended if its status is in ENDED."""
    status = _object(answer, "State")
    running = _text(status, "Status") not in ended
    networks = _object(_object(answer, "NetworkSettings"), "Networks")
    addresses = (_text_or_none(_object(networks, name), "IPAddress") for name in networks)
    return ContainerState(
        None if running else _number(status, "ExitCode"),
        bool(status.get("OOMKilled")),
        next((address for address in addresses if address), None),
    )


def memory(answer: Object) -> int | None:
    """Return the peak of memory in ANSWER, statistics of a container, in bytes; None if it is not there."""
    return _number(_object(answer, "memory_stats"), "max_usage") or None


def memory_in_use(answer: Object) -> MemoryInUse:
    """Return the memory in ANSWER, statistics of a container, that is in use now."""
    statistics = _object(answer, "memory_stats")
    parts = _object(statistics, "stats")
    own = _number(parts, "anon") or _number(parts, "total_rss")  # cgroups v2, v1
    return MemoryInUse(_number(statistics, "usage") or None, own or None)


def processor(answer: Object) -> float:
    """Return the processor time in ANSWER, statistics of a container, in seconds."""
    return _number(_object(_object(answer, "cpu_stats"), "cpu_usage"), "total_usage") / 10**9


def errors(lines: object) -> str:
    """Return the errors in LINES, the answers to a load or a pull, as one text."""
    return "; ".join(shortened(str(line["error"])) for line in _list(lines, "answers") if "error" in line)


def shortened(error: str) -> str:
    """Return ERROR, a text of the engine, without its middle if it is long."""
    return error if len(error) <= _BEGINNING + _END else f"{error[:_BEGINNING]} [...] {error[-_END:]}"


def _labels(answer: Object) -> Mapping[str, str]:
    labels = _object(answer, "Labels")
    if not all(isinstance(value, str) for value in labels.values()):
        raise OtherFormError(f"Labels: texts are missing in {str(labels)[:_SHOWN]}")
    return labels


def _list(answer: object, what: str) -> list[Object]:
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise OtherFormError(f"{what}: a list is missing in {str(answer)[:_SHOWN]}")
    return [_checked(entry, what) for entry in answer]


def _checked(answer: object, what: str) -> Object:
    if not isinstance(answer, Mapping):
        raise OtherFormError(f"{what}: an object is missing in {str(answer)[:_SHOWN]}")
    return answer


def _object(answer: object, key: str) -> Object:
    return _checked(_checked(answer, key).get(key) or {}, key)


def _text(answer: object, key: str) -> str:
    value = _checked(answer, key).get(key)
    if not isinstance(value, str):
        raise OtherFormError(f"{key}: a text is missing in {str(answer)[:_SHOWN]}")
    return value


def _text_or_none(answer: Object, key: str) -> str | None:
    return _text(answer, key) if answer.get(key) is not None else None


def _texts(answer: object, key: str) -> tuple[str, ...]:
    values = _checked(answer, key).get(key) or ()
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise OtherFormError(f"{key}: a list of texts is missing in {str(values)[:_SHOWN]}")
    return tuple(values)


def _number(answer: Object, key: str) -> int:
    value = answer.get(key) or 0
    if not isinstance(value, int):
        raise OtherFormError(f"{key}: a whole number is missing in {str(value)[:_SHOWN]}")
    return value
