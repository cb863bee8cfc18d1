"""Build records: which image a build hash came to on this host.

Images are known by what is on record here, never by the labels and tags that an image carries: anybody can
give those to another image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import canonical, durable, paths
from nvllm.core.canonical import Json
from nvllm.core.paths import Places
from nvllm.host.facts import ImageFacts
from nvllm.image.engine import Engine
from nvllm.image.identity import Build


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    kind: str
    diff_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a finished build of BUILD_HASH came to: the image ids that the same factors give everywhere.

    LAYERS are those that nvllm made: on a registry's base, the upper ones.
    """

    image: str
    build_hash: str
    image_id: str
    layers: tuple[RecordedLayer, ...]
    manifest_id: str | None = None
    """The other name that an engine may have for it; None in records of before, and where nobody knew it."""

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.image_id,) if self.manifest_id is None else (self.image_id, self.manifest_id)

    def is_of(self, found: ImageFacts) -> bool:
        """Say whether FOUND, which an engine holds, is the image on record, by its id and by its layers."""
        own = tuple(one.diff_id for one in self.layers)
        return found.id in self.ids and found.diff_ids[max(0, len(found.diff_ids) - len(own)) :] == own


def read(directory: Path, build_hash: str) -> Record | None:
    """Return what is on record for BUILD_HASH below DIRECTORY, or None."""
    try:
        document = json.loads((directory / f"{build_hash}.json").read_bytes())
        layers = tuple(RecordedLayer(one["kind"], one["diff_id"], one["size"]) for one in document["layers"])
        return Record(document["image"], build_hash, document["image_id"], layers, document.get("manifest_id"))
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # damaged: a record can always be made again
        return None


def write(directory: Path, record: Record) -> None:
    """Put RECORD on record below DIRECTORY, by one rename. Raises Refused NV920 if it cannot be written."""
    document: Json = {
        "image": record.image,
        "build_hash": record.build_hash,
        "image_id": record.image_id,
        "manifest_id": record.manifest_id,
        "layers": [{"kind": one.kind, "diff_id": one.diff_id, "size": one.size} for one in record.layers],
    }
    place = directory / f"{record.build_hash}.json"
    with durable.writing(place, "NV920"):
        paths.ensure(directory)
    durable.replace(place, canonical.pretty(document).encode(), 0o600, code="NV920")


def held(record: Record, engine: Engine) -> ImageFacts | None:
    """Return the image on RECORD as ENGINE holds it, by whichever name it has there, or None."""
    named = (engine.image(one) for one in record.ids)
    return next((found for found in named if found is not None and record.is_of(found)), None)


def recorded(build: Build, where: Places, engine: Engine, tags: Sequence[str]) -> Record | None:
    """Return the record of BUILD and give its image the TAGS, if ENGINE holds exactly that image; else None."""
    record = read(where.builds, build.build_hash)
    found = held(record, engine) if record is not None else None
    if found is None:
        return None
    for tag in tags:
        engine.tag(found.id, tag)
    return record
