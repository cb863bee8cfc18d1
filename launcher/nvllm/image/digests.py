"""Recorded digests: which bytes a build has to have, in ``manifests/<image>.digests.json`` beside the lock.

`nvllm build --record` writes them; every other build, on any machine, is compared with them. A record is of one build
hash. Another lock, spec or patch set has another hash, so a record never holds a change back: it says nothing of it.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from nvllm.core import documents, durable, reading
from nvllm.core.fields import NOT_EMPTY, Count, Form, Platform, Rule, Sha256, Word
from nvllm.core.paths import Project
from nvllm.image import sketch

SCHEMA = "nvllm.digests/1"

Digest = Annotated[str, Rule("^sha256:[0-9a-f]{64}$", "a digest, sha256: and 64 lower-case hex digits")]


@dataclass(frozen=True, slots=True)
class LayerDigest:
    """A layer that nvllm writes: its NAME, the sha256 of its uncompressed tar, and the bytes that this has."""

    name: Word
    diff_id: Digest
    size: Count
    sketch: Annotated[str | None, Rule("^[A-Za-z0-9+/]+=*$", "base64")] = None
    """What names files of another build that differ, see `sketch.py`. Layers of few files have none."""


@dataclass(frozen=True, slots=True)
class BuildDigests:
    """What came out of the build with BUILD_HASH. LAYERS are those that nvllm writes, from the bottom up."""

    build_hash: Sha256
    layers: Annotated[tuple[LayerDigest, ...], NOT_EMPTY]
    image_id: Digest | None = None
    """The digest of the image's configuration. Absent if only the layers of the patch set were built."""
    manifest: Digest | None = None
    """The digest of the OCI manifest. Absent as `image_id` is, and if the base is an image of a registry."""

    @property
    def whole(self) -> bool:
        """Whether these are the digests of an image, and not only of the layers of its patch set."""
        return self.image_id is not None


@dataclass(frozen=True, slots=True)
class Digests:
    """manifests/<image>.digests.json: the bytes that builds of an image have to have, for each platform."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    image: Word
    platforms: Mapping[Platform, BuildDigests]


FORM = Form("digests", SCHEMA, "Recorded digests", Digests)

Outcome: TypeAlias = Literal["as recorded", "not as recorded", "not recorded", "not recorded for this build hash"]


@dataclass(frozen=True, slots=True)
class Deviation:
    """WHAT of a build is not as recorded, with both digests, None where a side lacks it. LAYER names the layer."""

    what: str
    recorded: str | None
    built: str | None
    layer: str | None = None


def encode(digests: Digests) -> bytes:
    """Return the canonical text of DIGESTS."""
    return documents.encode(FORM, digests)


def decode(data: bytes, label: str) -> Digests:
    """Return the digests in DATA, the content of ``<image>.digests.json``, which messages call LABEL.

    Raises Refused NV309 with everything that is wrong.
    """
    image = Path(label).name.partition(".")[0]
    cure = f"git checkout -- {shlex.quote(label)} || nvllm build {image} --record"
    return documents.decode(FORM, data, lambda digests: _wrong(digests, image), code="NV309", label=label, cure=cure)


def _wrong(digests: Digests, image: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, expected and found for the rules that a schema cannot express."""
    if digests.image != image:
        yield ".image", f"{image}, the name of the file", digests.image
    for platform, build in digests.platforms.items():
        if len({layer.name for layer in build.layers}) < len(build.layers):
            yield f".platforms.{platform}.layers", "each layer once", "a layer more than once"
        for layer in build.layers:
            try:
                sketch.changes(layer.sketch or sketch.EMPTY, sketch.EMPTY)
            except ValueError as error:
                yield f".platforms.{platform}: sketch of layer {layer.name}", "a sketch of files", str(error)


def read(path: Path, label: str) -> Digests | None:
    """Return the digests at PATH, which messages call LABEL, or None if there is no file.

    Raises Refused NV109 if it is no file to read, as a link to nothing, NV309 if it is not exactly what nvllm writes.
    """
    try:
        data = reading.content(path, reading.LOCK)
    except FileNotFoundError:
        if os.path.islink(path):  # not "nothing was recorded": then a build would be held against nothing
            raise reading.refused(label, OSError(errno.ELOOP, "a link to nothing", str(path))) from None
        return None
    except OSError as error:
        raise reading.refused(label, error) from error
    return decode(data, label)


def of_project(project: Project, image: str) -> BuildDigests | None:
    """Return what PROJECT has recorded of IMAGE for its platform, if anything. Raises Refused as `read` does."""
    path = project.digests(image)
    recorded = read(path, project.show(path))
    return recorded.platforms.get(project.platform) if recorded is not None else None


def write(path: Path, digests: Digests) -> None:
    """Write DIGESTS to PATH by one rename. Raises Refused NV920 if it cannot be written."""
    durable.replace(path, encode(digests), 0o644, code="NV920")


def recorded(before: Digests | None, image: str, platform: str, built: BuildDigests) -> Digests:
    """Return BEFORE, the digests of IMAGE so far, with those of BUILT for PLATFORM.

    If BUILT is a part of what is recorded already, with the same bytes, the whole stays recorded.
    """
    platforms = dict(before.platforms) if before is not None else {}
    former = platforms.get(platform)
    if not (former is not None and former.whole and not built.whole and compare(former, built) == ("as recorded", ())):
        platforms[platform] = built
    return Digests(SCHEMA, image, dict(sorted(platforms.items())))


def compare(recorded: BuildDigests | None, built: BuildDigests) -> tuple[Outcome, tuple[Deviation, ...]]:
    """Compare BUILT with RECORDED, the record for its platform; return the outcome, and what is not as recorded.

    If one of them has only the layers of the patch set, these are compared.
    """
    if recorded is None:
        return "not recorded", ()
    if recorded.build_hash != built.build_hash:
        return "not recorded for this build hash", ()
    deviations = tuple(_deviations(recorded, built))
    return "not as recorded" if deviations else "as recorded", deviations


def compare_some(recorded: BuildDigests | None, built: BuildDigests) -> tuple[Outcome, tuple[Deviation, ...]]:
    """Compare BUILT, some layers of a build, with those of RECORDED, the record for its platform, as `compare` does.

    A record of the layers of the patch set says nothing of the others.
    """
    names = {layer.name for layer in built.layers}
    if recorded is not None and not recorded.whole:
        names &= {layer.name for layer in recorded.layers}
    if recorded is None or not names:
        return "not recorded", ()
    before, after = (tuple(layer for layer in side.layers if layer.name in names) for side in (recorded, built))
    return compare(replace(recorded, layers=before, image_id=None, manifest=None), replace(built, layers=after))


def _deviations(recorded: BuildDigests, built: BuildDigests) -> Iterator[Deviation]:
    before = {layer.name: layer.diff_id for layer in recorded.layers}
    after = {layer.name: layer.diff_id for layer in built.layers}
    part = recorded.whole != built.whole
    smaller = after if part and recorded.whole else before
    for name in smaller if part else {**before, **after}:
        if before.get(name) != after.get(name):
            yield Deviation(f"layer {name}", before.get(name), after.get(name), name)
    if not part and sorted(before) == sorted(after) and list(before) != list(after):
        yield Deviation("order of the layers", ", ".join(before), ", ".join(after))
    for what, old, new in (
        ("image id", recorded.image_id, built.image_id),
        ("manifest", recorded.manifest, built.manifest),
    ):
        if old is not None and new is not None and old != new:
            yield Deviation(what, old, new)
