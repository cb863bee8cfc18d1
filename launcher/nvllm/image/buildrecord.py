"""Build records: which image was built for a build hash on this host, and for which projects.

::

    <state>/builds/<build hash>.json            the record; the ids are the same for every project
    <state>/work/<project>/builds/<build hash>  an empty file: this project has built, pulled or used that build

nvllm trusts these records and never the labels and tags of an image, which anybody can give to another image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.core import canonical, durable, paths, reading, trusted
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.engine.engine import Engine
from nvllm.host.facts import ImageFacts
from nvllm.image.identity import Build
from nvllm.layers.oci import Image


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    kind: str
    diff_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """The result of a finished build of BUILD_HASH: the image ids, which are the same on every host.

    LAYERS are those that nvllm made; on a registry base, these are the upper ones.
    """

    image: str
    build_hash: str
    image_id: str
    layers: tuple[RecordedLayer, ...]
    manifest_id: str | None = None
    """The id that a containerd image store uses; None in older records, and where it was unknown."""

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.image_id,) if self.manifest_id is None else (self.image_id, self.manifest_id)

    def is_of(self, image: ImageFacts) -> bool:
        """Return whether IMAGE, an image of an engine, has the recorded id and layers."""
        own = tuple(one.diff_id for one in self.layers)
        return image.id in self.ids and image.diff_ids[max(0, len(image.diff_ids) - len(own)) :] == own


def read(directory: Path, build_hash: str) -> Record | None:
    """Return the record of BUILD_HASH below DIRECTORY, or None if there is none or it is damaged.

    Raises Refused NV513 if somebody else can have written it, or if it cannot be read.
    """
    data = trusted.state(directory.parent, "NV513").content(directory / f"{build_hash}.json", reading.STATE)
    if data is None:
        return None
    try:
        document: Any = canonical.decode(data)
        layers = tuple(RecordedLayer(one["kind"], one["diff_id"], one["size"]) for one in document["layers"])
        return Record(document["image"], build_hash, document["image_id"], layers, document.get("manifest_id"))
    except (ValueError, TypeError, KeyError):  # damaged: building again writes a new one
        return None


def write(directory: Path, record: Record) -> None:
    """Write RECORD below DIRECTORY, by one rename. Raises Refused NV920 if it cannot be written."""
    path = directory / f"{record.build_hash}.json"
    with durable.writing(path, "NV920"):
        paths.ensure(directory)
    durable.replace(path, canonical.pretty(dataclasses.asdict(record)).encode(), 0o600, code="NV920")


def use(where: Places, project: Project, build_hash: str) -> None:
    """Note that PROJECT needs the build of BUILD_HASH. Raises Refused NV920 if that cannot be written."""
    path = where.work(project) / "builds" / build_hash
    with durable.writing(path, "NV920"):
        paths.ensure(path.parent)
        path.touch(0o600)


def makers(where: Places, build_hash: str) -> frozenset[str]:
    """Return the ids of the projects that have used BUILD_HASH; none for one that only an older nvllm has built."""
    return frozenset(path.parents[1].name for path in where.works.glob(f"*/builds/{build_hash}"))


def load(
    image: Image, name: str, build_hash: str, engine: Engine, tags: Sequence[str], where: Places, progress: Progress
) -> Record:
    """Load IMAGE, that of NAME with BUILD_HASH, into ENGINE under TAGS; return its record, which is written before.

    `gc` finds images by their records, so an image without one would never be removed. Raises Refused as `write` and
    `Engine.load` do.
    """
    layers = tuple(RecordedLayer(one.kind, one.diff_id, one.size) for one in image.layers)
    record = Record(name, build_hash, image.id, layers, next(iter(image.ids[1:]), None))
    write(where.builds, record)
    engine.load(image, tags, progress)
    return record


def in_engine(record: Record, engine: Engine) -> ImageFacts | None:
    """Return the recorded image if ENGINE holds it under either of its ids, else None."""
    named = (engine.image(one) for one in record.ids)
    return next((found for found in named if found is not None and record.is_of(found)), None)


def recorded(build: Build, project: Project, where: Places, engine: Engine, tags: Sequence[str]) -> Record | None:
    """Return the record of BUILD and give its image the TAGS, if ENGINE holds exactly that image; else None.

    PROJECT is noted as one that needs the build.
    """
    record = read(where.builds, build.build_hash)
    image = in_engine(record, engine) if record is not None else None
    if image is None:
        return None
    use(where, project, build.build_hash)
    for tag in tags:
        engine.tag(image.id, tag)
    return record
