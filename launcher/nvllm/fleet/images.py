"""Images on their way: sent layer by layer to a registry, and brought from there into the engine.

An image is pushed as `layers/oci.py` describes it, with uncompressed layers, so its manifest has the digest that every
build of the same lock gives. A tag and the labels of an image name its build, which proves nothing: `presence.judged`
decides, by the digests, whether what a registry offers is the image of a build.
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
from nvllm.image import buildrecord, development, identity, presence, recording
from nvllm.image.builder import ImageBuilder
from nvllm.image.buildrecord import Proof, Record, RecordedLayer
from nvllm.image.digests import BuildDigests, LayerDigest, compare
from nvllm.image.identity import Build
from nvllm.layers import oci
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Image, sha256
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
    return sum(blob.size for blob in repository.lacking(_blobs(image)))


def _blobs(image: Image) -> list[Blob]:
    return [*(Blob(layer.diff_id, layer.size, layer.path) for layer in image.layers), Blob.of(image.config)]


def push_image(image: Image, tag: str, repository: Repository) -> Pushed:
    """Send IMAGE, all of whose layers are here, to REPOSITORY as TAG. Only what the registry lacks travels.

    Raises Refused as `Repository.push_blobs` and `push_manifest` do, and before that NV612 for what `nvllm dev` serves.
    The manifest is sent last, so a push that was killed leaves no image that lacks a layer.
    """
    refuse_any(development.refusals(image.development, f"the image {image.id}"))
    manifest = image.manifest
    assert manifest is not None
    blobs = _blobs(image)
    sent = repository.push_blobs(blobs)
    digest = repository.push_manifest(tag, manifest).digest
    return Pushed(tag, digest, sum(blob.size for blob in blobs), sent)


@dataclass(frozen=True, slots=True)
class Present:
    """An image that is whole in a registry already: its MANIFEST, and the SIZE of its layers and configuration."""

    manifest: bytes
    size: int


def present(build: Build, recorded: BuildDigests | None, repository: Repository) -> Present | None:
    """Return the image of BUILD with the manifest that is RECORDED, if REPOSITORY has all of it.

    The digest says what is in it, so none of its layers is needed here.
    """
    if recorded is None or recorded.build_hash != build.build_hash or recorded.manifest is None:
        return None
    manifest = repository.find_manifest(recorded.manifest)
    if manifest is None:
        return None
    offered = _offered(manifest, repository)
    layers = [Blob(layer.diff_id, layer.size) for layer in offered.layers]
    size = len(offered.config) + sum(layer.size for layer in layers)
    return Present(manifest, size) if not repository.lacking(layers) else None


def tag_present(image: Present, tag: str, repository: Repository) -> Pushed:
    """Give the IMAGE that REPOSITORY has the TAG. Raises Refused as `push_manifest` does."""
    return Pushed(tag, repository.push_manifest(tag, image.manifest).digest, image.size, 0)


@dataclass(frozen=True, slots=True)
class PushedSet:
    """The image of a set of patches in the registry: its BUILD_HASH, and the digests of MANIFEST and CONFIG."""

    build_hash: str
    manifest: str
    config: str


def push_set(builder: ImageBuilder, name: str, chosen: tuple[str, ...], repository: Repository) -> PushedSet:
    """Send the image NAME with the patches CHOSEN to REPOSITORY; BUILDER makes what is not here.

    Raises Refused as `ImageBuilder.image` and `push_image` do, and for inputs that the lock does not fit.
    """
    build, stale = identity.load_build(builder.project, name, chosen)
    refuse_any(stale)
    image = builder.image(build)
    return PushedSet(build.build_hash, push_image(image, tag_of(build), repository).digest, image.id)


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
    build: Build,
    project: Project,
    places: Places,
    engine: Engine,
    progress: Progress,
    tags: Sequence[str] | None = None,
    proof: Proof | None = None,
) -> Pulled:
    """Bring the image of BUILD, with the manifest DIGEST if there is one, from REPOSITORY into ENGINE.

    It gets TAGS; if there are none, those of BUILD. PROOF is what this host knows of the image with DIGEST besides what
    PROJECT has recorded. Every blob is hashed while it comes; what the layer cache or the store has does not travel.
    Raises Refused: NV331 if the registry has no such image, NV205 for other bytes than were asked for, NV308 for an
    image that is not as recorded, NV332 for one of something else, or that nothing proves to be that of BUILD, or that
    would take the place of another, NV304 if the engine does not take it.
    """
    offered = _offer(repository, digest, build, project)
    described = _record(offered, build, proof)
    judgement = presence.judged(described, project)
    refuse_any(presence.deviating(project, build.spec.name, judgement.deviations))
    if not judgement.counts:
        where, name = project.show(project.digests(build.spec.name)), build.spec.name
        expected = f"the digests of the whole image of build hash {build.build_hash[:12]}"
        cure = f"nvllm pull {repository.name.typed}{'' if digest is None else f'@{digest}'} {name} --verify"
        raise refuse("NV332", where, expected, "none; a tag, a label or a digest that somebody names is no proof", cure)
    known = presence.proved(build, project, places)
    if known is not None and known.image_id != described.image_id:
        expected = f"image {known.image_id}, which this host has for build hash {build.build_hash}"
        cure = f"nvllm build {build.spec.name}"
        raise refuse("NV332", repository.name.where, expected, f"image {described.image_id}", cure)
    layers = _fetched(offered, places, repository, progress)
    image = Image(offered.config, layers)
    if image.manifest != offered.manifest:
        raise _other(repository, "a manifest that nvllm writes", "the same layers in another form")
    if known is not None and known.proof is not None:
        described = known
    buildrecord.use(places, project, build.build_hash)  # first: `gc` asks which projects a build is for
    written = buildrecord.load(image, described, engine, build.tags if tags is None else tags, places, progress)
    return Pulled(written, sha256(offered.manifest))


def compared(repository: Repository, digest: str | None, build: Build, builder: ImageBuilder) -> str:
    """Make every layer of BUILD here, and return the manifest's digest if REPOSITORY offers exactly that image.

    It is looked for by DIGEST, or by its tag. Raises Refused as `ImageBuilder.image` does, and NV308 for each layer
    that differs.
    """
    offered = _offer(repository, digest, build, builder.project)
    made = recording.of_image(build, builder.image(build))
    _, deviations = compare(made, recording.of_record(_record(offered, build, None)))
    cure = f"nvllm build {build.spec.name}"
    refuse_any(
        Refusal(
            "NV308",
            f"{repository.name.where}: {deviation.what}",
            deviation.recorded or "none",
            deviation.built or "none",
            cure,
        )
        for deviation in deviations
    )
    return sha256(offered.manifest)


def _offer(repository: Repository, digest: str | None, build: Build, project: Project) -> _Offered:
    """Return what REPOSITORY offers under DIGEST, or as BUILD. Raises Refused NV332 if its labels are not BUILD's."""
    offered = _offered(repository.manifest(digest or tag_of(build)), repository)
    refuse_any(_against(offered, build, project, repository))
    return offered


def _record(offered: _Offered, build: Build, proof: Proof | None) -> Record:
    layers = tuple(RecordedLayer(layer.name, layer.diff_id, layer.size) for layer in offered.layers)
    config, manifest = sha256(offered.config), sha256(offered.manifest)
    return Record(build.spec.name, build.build_hash, config, layers, manifest, proof)


def _other(repository: Repository, expected: str, offered: str) -> Refused:
    where = repository.name.where
    return refuse("NV332", where, expected, offered, "push it again from a host that built it: nvllm push REPO IMAGE")


def _offered(data: bytes, repository: Repository) -> _Offered:
    """Return what DATA, a manifest, and its configuration say. Raises Refused NV332 if nvllm did not write them."""
    try:
        manifest = canonical.mapping(canonical.decode(data))
        layers = [described(descriptor) for descriptor in _sequence(manifest.get("layers"))]
        config = repository.document(described(manifest.get("config")))
        document = canonical.mapping(canonical.decode(config))
        labels = canonical.mapping(canonical.mapping(document.get("config")).get("Labels"))
        kinds = [str(canonical.mapping(entry).get("created_by")) for entry in _sequence(document.get("history"))]
        diff_ids = [str(diff_id) for diff_id in _sequence(canonical.mapping(document.get("rootfs")).get("diff_ids"))]
        name, build_hash = _identity(labels["nvllm.image"], labels["nvllm.build-hash"])
        platform = f"{document['os']}/{document['architecture']}"
    except (ValueError, KeyError) as error:
        raise _other(repository, "an image that nvllm pushed", str(error)[:200]) from error
    named = [layer.digest for layer in layers]
    if named != diff_ids or len(kinds) != len(named) or any(layer.media_type != oci.LAYER for layer in layers):
        raise _other(repository, "layers as nvllm pushes them, not compressed", "others")
    pairs = zip(kinds, layers, strict=True)
    digests = tuple(LayerDigest(oci.kind_in(kind) or kind, layer.digest, layer.size) for kind, layer in pairs)
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


def _against(offered: _Offered, build: Build, project: Project, repository: Repository) -> Sequence[Refusal]:
    """Return why OFFERED is, as it says itself, not an image for this host, or not that of BUILD."""
    where, name = repository.name.where, build.spec.name
    refusals = []
    if offered.platform != project.platform:
        cure = f"pull it on a host of the platform {offered.platform}"
        refusals.append(Refusal("NV332", where, f"an image for {project.platform}", offered.platform, cure))
    if (offered.name, offered.build_hash) != (name, build.build_hash):
        expected = f"image {name} of build hash {build.build_hash}"
        cure = f"nvllm build {name}" if offered.name == name else f"nvllm pull {repository.name.typed} {offered.name}"
        refusals.append(Refusal("NV332", where, expected, f"image {offered.name} of {offered.build_hash}", cure))
    return refusals


def _fetched(offered: _Offered, places: Places, repository: Repository, progress: Progress) -> tuple[Layer, ...]:
    """Return the layers of OFFERED on this host, from the layer cache, the store or REPOSITORY."""
    cache, store = LayerCache(places.layers), Store(places.store)
    cached = {layer.diff_id: cache.holding(layer.diff_id) for layer in offered.layers}
    missing = [_file(layer) for layer in offered.layers if cached[layer.diff_id] is None]
    fetch.fetch(missing, store, BlobSource(repository), progress, offline=False)
    return tuple(
        Layer(
            layer.name,
            layer.diff_id,
            layer.size,
            cached[layer.diff_id] or store.path(layer.diff_id.removeprefix("sha256:")),
        )
        for layer in offered.layers
    )


def _file(layer: LayerDigest) -> LockedFile:
    sha = layer.diff_id.removeprefix("sha256:")
    return LockedFile(f"layer-{sha[:12]}.tar", sha, layer.size, "registry")
