"""Build records: which image id a build hash came to on this host.

Images are known by what is on record here, never by the labels and tags that an image carries: anybody can
give those to another image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm import canonical, durable, places
from nvllm.canonical import Json
from nvllm.engine import Engine
from nvllm.identity import Build
from nvllm.places import Places


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    kind: str
    diff_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a finished build of BUILD_HASH came to: the image id that the same factors give everywhere."""

    image: str
    build_hash: str
    image_id: str
    layers: tuple[RecordedLayer, ...]


def read(directory: Path, build_hash: str) -> Record | None:
    """Return what is on record for BUILD_HASH below DIRECTORY, or None."""
    try:
        document = json.loads((directory / f"{build_hash}.json").read_bytes())
        layers = tuple(RecordedLayer(one["kind"], one["diff_id"], one["size"]) for one in document["layers"])
        return Record(document["image"], build_hash, document["image_id"], layers)
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # damaged: a record can always be made again
        return None


def write(directory: Path, record: Record) -> None:
    """Put RECORD on record below DIRECTORY, by one rename. Raises Refused NV920 if it cannot be written."""
    document: Json = {
        "image": record.image,
        "build_hash": record.build_hash,
        "image_id": record.image_id,
        "layers": [{"kind": one.kind, "diff_id": one.diff_id, "size": one.size} for one in record.layers],
    }
    place = directory / f"{record.build_hash}.json"
    with durable.writing(place, "NV920"):
        places.ensure(directory)
    durable.replace(place, canonical.pretty(document).encode(), 0o600, code="NV920")


def recorded(made: Build, where: Places, engine: Engine, tags: Sequence[str]) -> Record | None:
    """Return the record of MADE if ENGINE holds exactly the image that it came to, after giving it TAGS."""
    record = read(where.builds, made.build_hash)
    if record is None or engine.image(record.image_id) is None:
        return None
    for tag in tags:
        engine.tag(record.image_id, tag)
    return record
