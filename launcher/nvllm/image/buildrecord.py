"""Build records: which image was built for a build hash on this host, and for which projects.

::

    <state>/builds/<build hash>.json            the record; the ids are the same for every project
    <state>/work/<project>/builds/<build hash>  an empty file: this project has built, pulled or used that build

nvllm trusts these records and never the labels and tags of an image, which anybody can give to another image. Whether
a record counts is decided by `presence.judged` alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from nvllm.core import canonical, durable, paths, reading, trusted
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.engine.engine import Engine
from nvllm.host.facts import ImageFacts
from nvllm.layers.oci import Image

Proof: TypeAlias = Literal["built", "driver"]
"""How this host itself knows an image to be that of a build hash: it has made and compared every layer, or the driver
of a task named the manifest. A driver may run any program here as this user, so its word is worth what this host's is.
"""


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
    proof: Proof | None = None
    """None if it was pulled as a project has recorded it, and in older records, which may be of anything."""
    tags: tuple[str, ...] | None = None
    """What this home has called the image in the engine; None in older records: then every tag that the image has."""

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.image_id,) if self.manifest_id is None else (self.image_id, self.manifest_id)

    def named(self, tag: str) -> bool:
        """Return whether this home gave the image the name TAG."""
        return self.tags is None or tag in self.tags

    def is_of(self, image: ImageFacts) -> bool:
        """Return whether IMAGE, an image of an engine, has the recorded id and layers."""
        own = tuple(layer.diff_id for layer in self.layers)
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
        layers = tuple(RecordedLayer(layer["kind"], layer["diff_id"], layer["size"]) for layer in document["layers"])
        proof = document.get("proof")
        proof = proof if proof in get_args(Proof) else None
        tags = document.get("tags")
        tags = None if tags is None else tuple(map(str, tags))
        manifest_id = document.get("manifest_id")
        return Record(document["image"], build_hash, document["image_id"], layers, manifest_id, proof, tags)
    except (ValueError, TypeError, KeyError):  # damaged: building again writes a new one
        return None


def write(directory: Path, record: Record) -> None:
    """Write RECORD below DIRECTORY, by one rename. Raises Refused NV920 if it cannot be written."""
    path = directory / f"{record.build_hash}.json"
    durable.keep(path, canonical.pretty(dataclasses.asdict(record)).encode())


def use(where: Places, project: Project, build_hash: str) -> None:
    """Note that PROJECT needs the build of BUILD_HASH. Raises Refused NV920 if that cannot be written."""
    path = where.work(project) / "builds" / build_hash
    with durable.writing(path, "NV920"):
        paths.ensure(path.parent)
        path.touch(0o600)


def makers(where: Places, build_hash: str) -> frozenset[str]:
    """Return the ids of the projects that have used BUILD_HASH; none for one that only an older nvllm has built."""
    return frozenset(path.parents[1].name for path in where.works.glob(f"*/builds/{build_hash}"))


def records(directory: Path) -> Iterator[Record]:
    """Yield every record below DIRECTORY that is not damaged. Raises Refused as `read` does."""
    for path in sorted(directory.glob("*.json")):
        record = read(directory, path.stem)
        if record is not None:
            yield record


def own_tags(tags: Iterable[str], where: Places, engine: Engine) -> tuple[str, ...]:
    """Return TAGS as the home of WHERE may use them in ENGINE: those that another home, or a person, has get its id.

    Homes share an engine, and an image lives as long as its last tag. So no home moves, shares or removes a tag of
    another.
    """
    own = []
    for tag in tags:
        image = engine.image(tag)
        free = image is None or any(image.id in record.ids and record.named(tag) for record in records(where.builds))
        own.append(tag if free else f"{tag}-{where.id[:7]}")
    return tuple(own)


def tagged(record: Record, tags: Sequence[str], where: Places) -> Record:
    """Return RECORD with TAGS, names of its image, written below WHERE if it lacks one. Raises Refused as `write`."""
    before = read(where.builds, record.build_hash)
    known = before.tags or () if before is not None and before.image_id == record.image_id else ()
    with_tags = dataclasses.replace(record, tags=tuple(dict.fromkeys((*known, *tags))))
    if with_tags != before:
        write(where.builds, with_tags)
    return with_tags


def of_image(image: Image, name: str, build_hash: str, proof: Proof | None) -> Record:
    """Return the record of IMAGE, that of NAME with BUILD_HASH by PROOF."""
    layers = tuple(RecordedLayer(layer.kind, layer.diff_id, layer.size) for layer in image.layers)
    return Record(name, build_hash, image.id, layers, next(iter(image.ids[1:]), None), proof)


def load(
    image: Image, record: Record, engine: Engine, tags: Sequence[str], where: Places, progress: Progress
) -> Record:
    """Load IMAGE into ENGINE under TAGS, see `own_tags`. Return RECORD, its record, with them; it is written before.

    `gc` finds images by their records, so an image without one would never be removed. Raises Refused as `write` and
    `Engine.load` do.
    """
    own = own_tags(tags, where, engine)
    written = tagged(record, own, where)  # a kill after this leaves a record of no image, which the next build loads
    engine.load(image, own, progress)
    return written


def in_engine(record: Record, engine: Engine) -> ImageFacts | None:
    """Return the recorded image if ENGINE holds it under either of its ids, else None."""
    named = (engine.image(image_id) for image_id in record.ids)
    return next((image for image in named if image is not None and record.is_of(image)), None)
