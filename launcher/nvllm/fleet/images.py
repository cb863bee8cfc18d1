"""Images on their way: sent layer by layer to a registry, and brought from there into the engine.

An image is pushed as `layers/oci.py` describes it, with uncompressed layers, so its manifest has the digest that every
build of the same lock gives. A tag names it by its build hash, which proves nothing: a pull goes by the digest that the
user names, or by the project's recorded digests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvllm.core import canonical, paths
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedFile
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.engine.engine import Engine
from nvllm.fleet.registry import Blob, BlobSource, Repository, described
from nvllm.image import buildrecord, identity, recording
from nvllm.image.buildrecord import Record
from nvllm.image.digests import BuildDigests, LayerDigest
from nvllm.image.identity import Build
from nvllm.layers import oci
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Descriptor, Image, sha256
from nvllm.layers.tarlayer import Layer
from nvllm.sources import fetch
from nvllm.sources.store import Store

_BUILD_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Pushed:
    """What is in the registry now: the manifest's DIGEST under TAG. SENT of its SIZE bytes had to travel."""

    tag: str
    digest: str
    size: int
    sent: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """An image in the engine: the RECORD of its build hash, and its manifest's DIGEST in the registry."""

    record: Record
    digest: str


def tag_of(build: Build) -> str:
    """Return the tag of the image of BUILD in a repository."""
    return build.tags[0].partition(":")[2]


def lacking(image: Image, repository: Repository) -> int:
    """Return how many bytes of IMAGE REPOSITORY lacks."""
    return sum(one.size for one in repository.lacking(_blobs(image)))


def _blobs(image: Image) -> list[Blob]:
    return [*(Blob(one.diff_id, one.size, one.path) for one in image.layers), Blob.of(image.config)]


def push_image(image: Image, tag: str, repository: Repository) -> Pushed:
    """Send IMAGE, all of whose layers are here, to REPOSITORY as TAG. Only what the registry lacks travels.

    Raises Refused as `Repository.push_blobs` and `push_manifest` do. The manifest is sent last, so a push that was
    killed leaves no image that lacks a layer.
    """
    manifest = image.manifest
    assert manifest is not None
    blobs = _blobs(image)
    sent = repository.push_blobs(blobs)
    digest = repository.push_manifest(tag, manifest).digest
    return Pushed(tag, digest, sum(one.size for one in blobs), sent)


@dataclass(frozen=True, slots=True)
class _Offered:
    """An image that a registry offers, by its documents: what its own configuration says of it."""

    name: str
    build_hash: str
    platform: str
    config: bytes
    manifest: bytes
    layers: tuple[LayerDigest, ...]


def pull_image(
    repository: Repository,
    digest: str | None,
    build: Build | None,
    project: Project,
    places: Places,
    engine: Engine,
    progress: Progress,
    tags: Sequence[str] | None = None,
) -> Pulled:
    """Bring the image with the manifest DIGEST, or the image of BUILD, or both in one, from REPOSITORY into ENGINE.

    It gets TAGS; if there are none, those of BUILD, or the one of its own build hash.
    Every blob is hashed while it comes; what the layer cache or the store has does not travel. Without a DIGEST, the
    PROJECT must have recorded the digests of BUILD. Raises Refused: NV331 if the registry has no such image, NV205 for
    other bytes than were asked for, NV332 for an image of something else, or one that would take the place of another
    by its label alone, NV308 for one that is not as recorded, NV304
    if the engine does not take it.
    """
    if digest is not None:
        reference = digest
    else:
        assert build is not None
        reference = tag_of(build)
    data = repository.manifest(reference)
    offered = _offered(data, repository)
    refuse_any(_against(offered, build, project, repository))
    built = BuildDigests(offered.build_hash, offered.layers, sha256(offered.config), sha256(data))
    if build is not None:
        _hold(project, build, built, digest is not None, repository)
    else:
        _not_in_place_of_another(offered, places, repository)
    layers = _fetched(offered, places, repository, progress)
    image = Image(offered.config, layers)
    if image.manifest != data:
        raise _other(repository, "a manifest that nvllm writes", "the same layers in another form")
    name, build_hash = offered.name, offered.build_hash
    if tags is None:
        tags = build.tags if build is not None else (identity.tag(name, build_hash),)
    buildrecord.use(places, project, build_hash)
    return Pulled(buildrecord.load(image, name, build_hash, engine, tags, places, progress), sha256(data))


def _other(repository: Repository, expected: str, offered: str) -> Refused:
    where = repository.name.where
    return refuse("NV332", where, expected, offered, "push it again from a host that built it: nvllm push REPO IMAGE")


def _offered(data: bytes, repository: Repository) -> _Offered:
    """Return what DATA, a manifest, and its configuration say. Raises Refused NV332 if nvllm did not write them."""
    try:
        manifest = canonical.mapping(canonical.decode(data))
        layers = [described(one) for one in _sequence(manifest.get("layers"))]
        config = repository.document(described(manifest.get("config")))
        document = canonical.mapping(canonical.decode(config))
        labels = canonical.mapping(canonical.mapping(document.get("config")).get("Labels"))
        kinds = [str(canonical.mapping(one).get("created_by")) for one in _sequence(document.get("history"))]
        diff_ids = [str(one) for one in _sequence(canonical.mapping(document.get("rootfs")).get("diff_ids"))]
        name, build_hash = _identity(labels["nvllm.image"], labels["nvllm.build-hash"])
        platform = f"{document['os']}/{document['architecture']}"
    except (ValueError, KeyError) as error:
        raise _other(repository, "an image that nvllm pushed", str(error)[:200]) from error
    named = [one.digest for one in layers]
    if named != diff_ids or len(kinds) != len(named) or any(one.media_type != oci.LAYER for one in layers):
        raise _other(repository, "layers as nvllm pushes them, not compressed", "others")
    digests = tuple(_layer(kind, one) for kind, one in zip(kinds, layers, strict=True))
    return _Offered(name, build_hash, platform, config, data, digests)


def _identity(name: Json, build_hash: Json) -> tuple[str, str]:
    """Return NAME and BUILD_HASH of an image, of which a tag and a path are made. Raises ValueError for others."""
    if not isinstance(name, str) or not paths.is_image_name(name):
        raise ValueError(f"no name of an image: {name!r}")
    if not isinstance(build_hash, str) or not _BUILD_HASH.fullmatch(build_hash):
        raise ValueError(f"no build hash: {build_hash!r}")
    return name, build_hash


def _sequence(value: object) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError("no list where one should be")  # noqa: TRY004 - what is wrong is a document
    return value


def _layer(kind: str, blob: Descriptor) -> LayerDigest:
    return LayerDigest(oci.kind_in(kind) or kind, blob.digest, blob.size)


def _against(offered: _Offered, build: Build | None, project: Project, repository: Repository) -> Sequence[Refusal]:
    """Return why OFFERED is not an image for this host, or not that of BUILD."""
    where = repository.name.where
    refusals = []
    if offered.platform != project.platform:
        cure = f"pull it on a host of the platform {offered.platform}"
        refusals.append(Refusal("NV332", where, f"an image for {project.platform}", offered.platform, cure))
    if build is not None and (offered.name, offered.build_hash) != (build.spec.name, build.build_hash):
        expected = f"image {build.spec.name} of build hash {build.build_hash}"
        cure = f"nvllm build {build.spec.name}"
        refusals.append(Refusal("NV332", where, expected, f"image {offered.name} of {offered.build_hash}", cure))
    return refusals


def _hold(project: Project, build: Build, built: BuildDigests, by_digest: bool, repository: Repository) -> None:  # noqa: FBT001 - a fact about the pull
    """Hold BUILT, what the registry offers for BUILD, against the record of PROJECT."""
    outcome, deviations = recording.outcome(project, build.spec.name, built)
    where = project.show(project.digests(build.spec.name))
    refuse_any(
        Refusal(
            "NV308",
            f"{where}: {one.what}",
            one.recorded or "no such layer",
            one.built or "no such layer",
            f"nvllm build {build.spec.name}",
        )
        for one in deviations
    )
    if outcome != "as recorded" and not by_digest:
        expected = f"digests of build hash {build.build_hash[:12]}, or a digest behind {repository.name}"
        cure = f"name the digest that `nvllm push` printed: nvllm pull {repository.name}@sha256:... {build.spec.name}"
        raise refuse("NV332", where, expected, f"{outcome}: a tag proves nothing", cure)


def _not_in_place_of_another(offered: _Offered, places: Places, repository: Repository) -> None:
    """Refuse OFFERED, which only its own label gives a build hash, if this host has another image of that hash."""
    known = buildrecord.read(places.builds, offered.build_hash)
    if known is not None and known.image_id != sha256(offered.config):
        expected = f"image {known.image_id}, which this host has for build hash {offered.build_hash}"
        cure = f"nvllm pull {repository.name}@{sha256(offered.manifest)} {offered.name}"
        raise refuse("NV332", repository.name.where, expected, f"image {sha256(offered.config)}", cure)


def _fetched(offered: _Offered, places: Places, repository: Repository, progress: Progress) -> tuple[Layer, ...]:
    """Return the layers of OFFERED on this host, from the layer cache, the store or REPOSITORY."""
    cache, store = LayerCache(places.layers), Store(places.store)
    cached = {one.diff_id: cache.holding(one.diff_id) for one in offered.layers}
    missing = [_file(one) for one in offered.layers if cached[one.diff_id] is None]
    fetch.fetch(missing, store, BlobSource(repository), progress, offline=False)
    return tuple(
        Layer(one.name, one.diff_id, one.size, cached[one.diff_id] or store.path(one.diff_id.removeprefix("sha256:")))
        for one in offered.layers
    )


def _file(layer: LayerDigest) -> LockedFile:
    sha = layer.diff_id.removeprefix("sha256:")
    return LockedFile(f"layer-{sha[:12]}.tar", sha, layer.size, "registry")
