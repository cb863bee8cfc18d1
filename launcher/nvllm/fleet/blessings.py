"""Blessings on their way: the cache as an image that an engine can mount, its manifest and signature beside it.

::

    REPO:blessing-<serve hash>      an image of one layer, the blessed tree with its modes
      └─ subject of an artifact     the bless manifest, and its SSH signature if there is one

The tag is where to look, and nothing more. What comes back has to be the tree that the bless manifest lists, byte for
byte, under this host's serve hash; revocations, versions and signatures count as for a manifest that came by git.
Where the profile demands no signature, it is a candidate, which `nvllm bless --candidate` has to try here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvllm.cache import promotion, signature, staging
from nvllm.cache.blessings import Blessing, Blessings, whole
from nvllm.cache.cachetree import TOP, Tree, TreeFile
from nvllm.cache.manifest import PREFIX, Manifest, decode, encode
from nvllm.cache.pins import Pin, Pins
from nvllm.cache.store import TreeStore
from nvllm.core import archives, canonical, durable, reading
from nvllm.core.archives import ArchiveName
from nvllm.core.lock import LockedFile
from nvllm.core.paths import Places, ensure
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.fleet.bounded import question
from nvllm.fleet.registry import Blob, BlobSource, Repository, layers_of
from nvllm.layers import oci, tarlayer
from nvllm.layers.oci import LAYER, MANIFEST, Descriptor, sha256
from nvllm.layers.tarlayer import Layer, TarEntry
from nvllm.sources import fetch
from nvllm.sources.store import Store

ARTIFACT = "application/vnd.nvllm.blessing.v1"
_MANIFEST = "application/vnd.nvllm.bless-manifest.v1+json"
_SIGNATURE = "application/vnd.nvllm.ssh-signature.v1"
_SIGNATURE_BYTES = 64 << 10
_AHEAD = 1000
"""By how much the version of a signed blessing may exceed the next one here: this host may have missed some."""


@dataclass(frozen=True, slots=True)
class PushedBlessing:
    """A blessing in the registry: its LABEL and version, the TAG and DIGEST of its cache's image, the bytes SENT."""

    label: str
    version: int
    tag: str
    digest: str
    sent: int


def tag_of(serve_hash: str) -> str:
    """Return the tag of the blessing of SERVE_HASH in a repository."""
    return f"blessing-{serve_hash}"


def of_build(blessings: Blessings, image: str, profile: str, build_hash: str, now: float) -> list[Blessing]:
    """Return the blessings of PROFILE of IMAGE, as built with BUILD_HASH, one for each class of hosts.

    Raises Refused NV901 if there is none, and every reason not to serve one of them at NOW.
    """
    matching = [
        blessing
        for blessing in blessings.all()
        if blessing.manifest is not None
        and (blessing.manifest.image, blessing.manifest.profile, blessing.manifest.build_hash)
        == (image, profile, build_hash)
    ]
    cure = f"nvllm bless {image} --profile {profile}"
    if not matching:
        expected = f"a blessing of {profile} of image {image}, build hash {build_hash[:12]}"
        raise refuse("NV901", str(blessings.directory), expected, "none", cure)
    refuse_any(
        reason for path, manifest in whole(matching) for reason in blessings.reasons_against(path, manifest, now)
    )
    return matching


def push_blessing(
    blessing: Blessing, blessings: Blessings, platform: str, places: Places, repository: Repository, progress: Progress
) -> PushedBlessing:
    """Send BLESSING, whose cache is in the tree store, to REPOSITORY, for hosts of PLATFORM.

    The cache is hashed while it is copied, and the copy is sent. Raises Refused NV907 for a cache that has changed, and
    NV331 for what the registry does not take.
    """
    manifest = blessing.manifest
    assert manifest is not None
    written = encode(manifest)
    signed = blessings.signature(manifest)
    with packed(manifest.tree, _notes(manifest), manifest.cure, platform, places, progress) as (layer, config, image):
        sent = repository.push_blobs([Blob(layer.diff_id, layer.size, layer.path), Blob.of(config)])
    subject = repository.push_manifest(sha256(image), image)
    documents = [(_MANIFEST, written)]
    if signed.is_file():
        documents.append((_SIGNATURE, reading.unlinked(signed, _SIGNATURE_BYTES)))
    sent += repository.push_blobs([Blob.of(oci.EMPTY), *(Blob.of(data) for _, data in documents)])
    layers = [Descriptor(kind, sha256(data), len(data)) for kind, data in documents]
    repository.push_referrer(oci.artifact(ARTIFACT, layers, subject), subject.digest, ARTIFACT)
    # The tag comes last: who finds the cache by it finds its manifest too.
    repository.push_manifest(tag_of(manifest.serve_hash), image)
    return PushedBlessing(manifest.label, manifest.version, tag_of(manifest.serve_hash), subject.digest, sent)


def digest_of(manifest: Manifest, platform: str, places: Places, progress: Progress) -> str:
    """Return the digest that `push_blessing` gives the image of the cache of MANIFEST; nothing is sent.

    Raises Refused NV907 for a cache that has changed.
    """
    with packed(manifest.tree, _notes(manifest), manifest.cure, platform, places, progress) as (_, _, image):
        return sha256(image)


@contextlib.contextmanager
def packed(
    tree: Tree, notes: Mapping[str, str], cure: str, platform: str, places: Places, progress: Progress
) -> Iterator[tuple[Layer, bytes, bytes]]:
    """Yield the layer, the configuration and the manifest of the image of TREE, which is in the store and is hashed.

    NOTES are the annotations of the manifest. Raises Refused NV907 with CURE for a tree that has changed.
    """
    with (
        Pins(places.pins).pin() as pin,
        tempfile.TemporaryDirectory(prefix="push-", dir=ensure(places.staged)) as scratch,
    ):
        pin.keep(Path(scratch).name)
        copy = TreeStore(places.trees).stage(tree, Path(scratch), cure)
        with staging.discarding(copy.path.parent):
            layer = _layer(copy.path, tree, Path(scratch, "layer.tar"), progress)
            config = _configuration(platform, layer)
            yield layer, config, _manifest(notes, layer, config)


def _layer(directory: Path, tree: Tree, path: Path, progress: Progress) -> Layer:
    """Write TREE, which is at DIRECTORY, as the layer at PATH, with its modes."""
    entries = [
        TarEntry(tree_directory.path, "directory", 0o755 if tree_directory.mode == "0755" else 0o555)
        for tree_directory in tree.directories
    ]
    for file in tree.files:
        content = tarlayer.stored(directory / file.path)
        entries.append(TarEntry(file.path, "file", 0o555 if file.mode == "0555" else 0o444, file.size, content=content))
    # No time: the same tree is the same layer, whoever pushes it and whenever.
    return tarlayer.write("blessing", entries, epoch=0, path=path, progress=progress)


def _configuration(platform: str, layer: Layer) -> bytes:
    system, _, architecture = platform.partition("/")
    return canonical.encode(
        {
            "architecture": architecture,
            "os": system,
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        }
    )


def _notes(manifest: Manifest) -> dict[str, str]:
    """Return the annotations of the image of the cache of MANIFEST. They are for people; nothing trusts them."""
    return {
        "nvllm.blessing": manifest.label,
        "nvllm.serve-hash": manifest.serve_hash,
        "nvllm.tree": manifest.tree_hash,
    }


def _manifest(notes: Mapping[str, str], layer: Layer, config: bytes) -> bytes:
    """Return the OCI manifest of the image of LAYER, with NOTES as its annotations."""
    return canonical.encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": Descriptor(oci.CONFIG, sha256(config), len(config)).document(),
            "layers": [Descriptor(LAYER, layer.diff_id, layer.size).document()],
            "annotations": dict(notes),
        }
    )


# The way back


@dataclass(frozen=True, slots=True)
class PulledBlessing:
    """A blessing on this host: its MANIFEST, and the PATH of the manifest that is in force, or of the candidate.

    A CANDIDATE is served only after a bless has tried it here. NEW unless it was here before.
    """

    manifest: Manifest
    path: Path
    new: bool
    candidate: bool = False


def pull_blessing(
    repository: Repository,
    serve_hash: str,
    signers: Path | None,
    blessings: Blessings,
    places: Places,
    progress: Progress,
) -> PulledBlessing:
    """Bring the blessing of SERVE_HASH from REPOSITORY. SIGNERS is the allowed signers file that the profile names.

    One that they have signed comes into force, and one whose cache or manifest was in force here stays so. Any other
    is a claim of whoever writes to the registry: it becomes a candidate. Raises Refused: NV331 if the registry has
    none, NV205 for other bytes than it promised, NV332 for a blessing of something else, NV907 for a cache that is not
    the tree of its manifest, NV908 for a damaged manifest, NV909 without the signature that the profile requires, NV917
    for a version that is out of reach, and as `promotion.promote` does (revoked, older). Nothing changes then.
    """
    image = repository.manifest(tag_of(serve_hash))
    where = f"registry {repository.name.host}: {tag_of(serve_hash)}"
    manifest, signed = _chosen(repository, sha256(image), serve_hash, signers, where)
    there = blessings.of(serve_hash)
    refuse_any(blessings.revocations.against(blessings.directory / manifest.filename, manifest))
    same = [
        blessing
        for blessing in there
        if blessing.manifest is not None and blessing.manifest.tree_hash == manifest.tree_hash
    ]
    # In force already: it came by git, an nvllm that believed every registry has pulled it, or it was tried here.
    in_force = [blessing for blessing in same if blessing.manifest == manifest or signers is None]
    if signers is not None and not in_force:
        _require_reachable(manifest, blessings, where)
    layer = only_layer(image, where, repository)
    with Pins(places.pins).pin() as pin:  # until the manifest is in force, nothing else keeps the tree
        bring(repository, layer, manifest.tree, manifest.label, manifest.cure, places, progress, pin)
        if in_force:
            return PulledBlessing(in_force[0].manifest or manifest, in_force[0].path, new=False)
        if signers is None:
            new = manifest not in blessings.candidates()
            return PulledBlessing(manifest, promotion.offer(blessings, manifest), new, candidate=True)
        old = there[0] if len(there) == 1 else None
        return PulledBlessing(manifest, promotion.promote(blessings, manifest, old, signed or None), new=True)


def _require_reachable(manifest: Manifest, blessings: Blessings, where: str) -> None:
    """Refuse MANIFEST if its version would leave no room for those of others: its signer may have erred."""
    most = promotion.next_version(blessings, manifest.serve_hash) + _AHEAD
    if manifest.version > most:
        expected = f"version {most} at most, {_AHEAD} more than the next one here"
        raise refuse("NV917", where, expected, f"version {manifest.version}", manifest.cure)


def _again_from(repository: Repository) -> str:
    return f"push the blessing again: nvllm push {repository.name.typed} IMAGE --blessing PROFILE"


def _decoded(data: bytes, where: str) -> Manifest:
    """Return the manifest in DATA. Its own name is part of what is checked, so it is read out of DATA first."""
    try:
        document = canonical.decode(data)
    except ValueError:
        document = None
    fields = document if isinstance(document, dict) else {}
    name = f"{fields.get('label')}_{str(fields.get('serve_hash'))[:PREFIX]}.json"
    return decode(data, f"{where}/{name.replace('/', '_')[:200]}")


def _documents(repository: Repository, subject: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield each bless manifest whose subject is SUBJECT, and its signature, empty if there is none."""
    where = f"registry {repository.name.host}: {subject}"
    for referrer in repository.referrers(subject, ARTIFACT):
        try:
            artifact = canonical.decode(repository.manifest(referrer.digest))
            if not isinstance(artifact, dict) or artifact.get("artifactType") != ARTIFACT:
                continue
            by_kind = {layer.media_type: layer for layer in layers_of(artifact)}
        except ValueError as error:
            raise refuse(
                "NV332", where, "an artifact that nvllm pushed", str(error), _again_from(repository)
            ) from error
        if _MANIFEST in by_kind:
            signed = by_kind.get(_SIGNATURE)
            yield (
                repository.document(by_kind[_MANIFEST]),
                b"" if signed is None else repository.document(signed, _SIGNATURE_BYTES),
            )


def _chosen(
    repository: Repository, subject: str, serve_hash: str, signers: Path | None, where: str
) -> tuple[Manifest, bytes]:
    """Return the newest manifest of SUBJECT that SIGNERS have signed, and its signature; without SIGNERS the first.

    Whoever may push can add others, which must not hide it. Raises Refused NV332 if there is none, or one of another
    serve hash than SERVE_HASH, and NV909 for the first one if none is signed.
    """
    cure = "on the host that blessed it, then push it again: nvllm bless IMAGE --profile PROFILE --rebless --sign KEY"
    signed_ones: list[tuple[Manifest, bytes]] = []
    unsigned: list[Refusal] = []
    with question(repository.limits.seconds):  # however many artifacts refer to it
        for data, signed in _documents(repository, subject):
            if signers is None:
                return _manifest_of(serve_hash, data, where), signed
            try:
                signature.verify(data, signed, signers, where, cure)
            except Refused as refused:
                unsigned = unsigned or list(refused.refusals)
            else:
                signed_ones.append((_manifest_of(serve_hash, data, where), signed))
    refuse_any([] if signed_ones else unsigned)
    if not signed_ones:
        subject_of = f"registry {repository.name.host}: {subject}"
        raise refuse("NV332", subject_of, "a bless manifest that refers to it", "none", _again_from(repository))
    return max(signed_ones, key=lambda each: each[0].version)


def _manifest_of(serve_hash: str, data: bytes, where: str) -> Manifest:
    """Return the manifest in DATA. Raises Refused NV908 if it is none, and NV332 if it is not of SERVE_HASH."""
    manifest = _decoded(data, where)
    if manifest.serve_hash != serve_hash:
        cure = f"on the host that blessed it: nvllm push REPO {manifest.image} --blessing {manifest.profile}"
        raise refuse("NV332", where, f"serve hash {serve_hash}", manifest.serve_hash, cure)
    return manifest


def only_layer(image: bytes, where: str, repository: Repository) -> Descriptor:
    """Return the layer of IMAGE, the manifest of an image of a cache. Raises Refused NV332 if it is none."""
    try:
        layers = layers_of(canonical.decode(image))
    except ValueError as error:
        raise refuse("NV332", where, "the image of a blessed cache", str(error), _again_from(repository)) from error
    if len(layers) != 1 or layers[0].media_type != LAYER:
        expected = "an image of one uncompressed layer"
        raise refuse("NV332", where, expected, f"{len(layers)} layers", _again_from(repository))
    return layers[0]


def bring(
    repository: Repository,
    layer: Descriptor,
    tree: Tree,
    label: str,
    cure: str,
    places: Places,
    progress: Progress,
    pin: Pin,
) -> None:
    """Bring TREE into the tree store, from LAYER in REPOSITORY, and keep it by PIN; a stored one is hashed again.

    LABEL is for messages.

    Raises Refused NV205 for other bytes than the registry promised, and NV907 with CURE for another tree.
    """
    trees = TreeStore(places.trees)
    pin.keep(tree.hash)  # before the look: `gc` removes none that is pinned
    if trees.has(tree.hash):
        trees.verify(tree, cure)
        return
    store, sha = Store(places.store), layer.digest.removeprefix("sha256:")
    file = LockedFile(f"{label}.tar", sha, layer.size, "registry")
    fetch.fetch([file], store, BlobSource(repository), progress, offline=False)
    scratch = Path(tempfile.mkdtemp(dir=ensure(places.staged), prefix="pull-"))
    try:
        pin.keep(scratch.name)
        unpack(store.path(sha), tree, scratch / "tree", cure)
        adopted = trees.adopt(scratch / "tree", cure, written=tree.written, keep=pin.keep)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        store.remove(sha)  # the tree store has every file of it
    if adopted.hash != tree.hash:
        trees.remove(adopted.hash)
        raise refuse("NV907", str(trees.root), f"tree {tree.hash}", f"tree {adopted.hash}", cure)


def unpack(path: Path, tree: Tree, target: Path, cure: str) -> None:
    """Write the files of TREE from the tar at PATH into the new directory TARGET; nothing else of it is written.

    Raises Refused NV907 with CURE for every file that is missing, extra, or not the one in TREE, and NV306 for a torn
    archive.
    """
    missing = {file.path: file for file in tree.files}
    name = ArchiveName(path.name, "the layer of a blessed cache", cure)
    target.mkdir(mode=0o700)
    for directory in sorted(
        (tree_directory.path for tree_directory in tree.directories if tree_directory.path != TOP), key=str.encode
    ):
        (target / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    refusals: list[Refusal] = []
    # Beside its content a member takes a header and padding of 512 bytes each: 16 MiB are enough for 16,000 files.
    with durable.writing(target), archives.tar(path, name, tree.size + (16 << 20)) as archive:
        for member in archives.members(archive, tree.size):
            if member.isdir():
                continue
            expected = missing.pop(member.name, None)
            problem = _unpacked(archive, member, expected, target)
            if problem is not None:
                needed = f"sha256 {expected.sha256}, {expected.size} bytes" if expected is not None else "no such file"
                refusals.append(Refusal("NV907", f"{name.label}: {member.name[:200]}", needed, problem, cure))
    refusals += [
        Refusal("NV907", f"{name.label}: {missing_path}", "a file", "no such file", cure) for missing_path in missing
    ]
    refuse_any(refusals)


def _unpacked(archive: tarfile.TarFile, member: tarfile.TarInfo, expected: TreeFile | None, target: Path) -> str | None:
    """Write MEMBER, which must be EXPECTED, below TARGET; return what is wrong with it, or None."""
    if expected is None or not member.isreg():
        return "an extra file" if expected is None else "no regular file"
    stream = archive.extractfile(member)
    if stream is None or member.size != expected.size:
        return f"{member.size} bytes"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    digest = hashlib.sha256()
    with os.fdopen(os.open(target / expected.path, flags, int(expected.mode, 8) | 0o600), "wb") as out:
        while chunk := stream.read(1 << 18):
            digest.update(chunk)
            out.write(chunk)
    return None if digest.hexdigest() == expected.sha256 else f"sha256 {digest.hexdigest()}"
