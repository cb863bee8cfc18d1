"""Garbage: what no project and no process refers to any more, and its removal.

These keep a piece: a lock of a project, the current build of an image, an unfinished bisect, a manifest in force, and
a container that nvllm started. A piece younger than an hour is kept as well, because a build may be about to use it.

Of the archived manifests of a serve hash one keeps its cache: that which `nvllm manifest restore` can bring back.
Every rebless would leave another cache behind for ever. All keep their logs, which are small.

Of the records of a hardware gate the newest one of each machine stays, and every one that may satisfy a profile.

If a project is gone, or a file of it cannot be read, nobody knows what it refers to. Then only that goes which it
cannot refer to: what belongs to no project, such as an ended run, and builds that only other projects have made here.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from nvllm.bisect import journal
from nvllm.bless import evidence, rejected
from nvllm.bless.rejected import RejectedTree
from nvllm.cache import pins, staging
from nvllm.cache.blessings import Blessings, whole
from nvllm.cache.pins import Pins
from nvllm.cache.store import TreeStore
from nvllm.core import canonical, reading
from nvllm.core.paths import Places, Project, packaged
from nvllm.core.refusal import Refusal, Refused
from nvllm.gc import sizes
from nvllm.host import gate_records, gates, locks
from nvllm.host.facts import TREE_LABEL, ContainerFact, StoredImage
from nvllm.host.gates import GateName
from nvllm.image import builder, buildrecord, dockerfiles, identity
from nvllm.image.buildrecord import Record
from nvllm.layers.cache import LayerCache
from nvllm.lock import lockdoc
from nvllm.spec import specfile

Kind = Literal[
    "image",
    "record",
    "locked file",
    "partial download",
    "layer",
    "base tree",
    "bytecode",
    "differing build",
    "run directory",
    "blessed cache",
    "staged cache",
    "evidence of a bless",
    "gate record",
    "pin",
]

_OF_PROJECTS: frozenset[Kind] = frozenset(
    {"locked file", "layer", "base tree", "bytecode", "blessed cache", "evidence of a bless", "gate record"}
)
"""What a project may refer to without a trace of it in the state."""


_ARCHIVED = "only an archived manifest names it"


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing to remove. SIZE is what that frees, in bytes, after the pieces before it. NOTE is shown with it.

    TAGS are what an image is called by; its id if it has no tag.
    """

    kind: Kind
    name: str
    size: int
    path: Path | None = None
    note: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class References:
    """What must be kept: build hashes, sha256 of locked files, diff_ids of layers, and base trees.

    BLESSED are hashes of cache trees, INSTANCES those whose locks are held, LOGS sha256 of logs that manifests name.
    REJECTED are trees that stay for study, each with the directory of its bless.
    RESTORABLE are those of BLESSED that are kept for `nvllm manifest restore` alone. ARCHIVED are hashes of trees that
    archived manifests name; such a tree is not kept if nothing else names it, and a note says so. GATE_DAYS are
    the gates that profiles require, each with the days for which a record of it may satisfy one. PINNED are the names
    that living processes keep. PROJECTS are the ids of the projects that all of this was read from, or that were
    forgotten; UNKNOWN says which could not be read, and why.
    """

    builds: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    layers: frozenset[str] = frozenset()
    trees: frozenset[Path] = frozenset()
    blessed: frozenset[str] = frozenset()
    instances: frozenset[str] = frozenset()
    logs: frozenset[str] = frozenset()
    archived: frozenset[str] = frozenset()
    gate_days: frozenset[tuple[GateName, int]] = frozenset()
    pinned: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()
    unknown: tuple[Refusal, ...] = ()
    restorable: frozenset[str] = frozenset()
    rejected: tuple[tuple[Path, RejectedTree], ...] = ()


def images(
    places: Places,
    stored: Sequence[StoredImage],
    containers: Iterable[ContainerFact],
    referred: References,
    oldest: float,
) -> Iterator[Piece]:
    """Yield the images among STORED with a build record older than OLDEST that neither REFERRED nor CONTAINERS need.

    STORED are all images of the engine, because layers are shared with any of them. One without a record in PLACES was
    built by another user, or for another NVLLM_HOME, and is left alone.
    """
    keep = referred.builds | _used(containers)
    known: dict[str, Record] = {}
    for record in buildrecord.records(places.builds):
        name = record.build_hash
        old = name not in keep and (places.builds / f"{name}.json").lstat().st_mtime < oldest
        if old and _decided(places, name, referred):
            known.update(dict.fromkeys(record.ids, record))
    own = {
        image.facts.id: tuple(tag for tag in image.facts.tags if known[image.facts.id].named(tag))
        for image in stored
        if image.facts.id in known
    }
    # An image that has a tag of another home stays, for that home.
    gone = [image for image in stored if own.get(image.facts.id) == image.facts.tags]
    for image, size in sizes.of_images(gone, stored):
        tags = image.facts.tags or (image.facts.id,)
        yield Piece("image", " ".join(tags), size, tags=tags)
    for image in stored:
        if image not in gone and (tags := own.get(image.facts.id, ())):
            yield Piece("image", " ".join(tags), 0, note="another home keeps the image", tags=tags)


def _decided(places: Places, build_hash: str, referred: References) -> bool:
    """Return whether no project that is not in REFERRED can need the build of BUILD_HASH.

    A record of an older nvllm does not say who made it, so any project that could not be read may have.
    """
    makers = buildrecord.makers(places, build_hash)
    return makers <= referred.projects and bool(makers or not referred.unknown)


def _used(containers: Iterable[ContainerFact]) -> frozenset[str]:
    """Return the build hashes that have a container, which inherits the labels of its image."""
    return frozenset(container.labels.get("nvllm.build-hash", "") for container in containers)


def files(places: Places, referred: References, containers: Sequence[ContainerFact], oldest: float) -> Iterator[Piece]:
    """Yield what is below PLACES, was last changed before OLDEST (seconds since 1970), and is not referred to.

    Raises Refused NV109 if the records of hardware gates cannot be listed.
    """
    running = {container.name for container in containers if container.by_nvllm}
    mounted = {container.labels[TREE_LABEL] for container in containers if TREE_LABEL in container.labels}
    outdated = {record.path for record in gates.outdated(gate_records.filed(places.gates), referred.gate_days, oldest)}
    builds = referred.builds | _used(containers)  # nvllm removes no image without a record
    pinned, studied = referred.pinned, {record.tree for _, record in referred.rejected}
    candidates: list[tuple[Kind, Iterable[Path], Callable[[Path], bool]]] = [
        ("locked file", places.store.glob("sha256/*/*"), lambda path: path.name in referred.files),
        ("partial download", places.store.glob("partial/*"), lambda path: False),
        ("layer", places.layers.glob("*.tar"), lambda path: _diff_id(path) in referred.layers),
        ("base tree", places.layers.glob("*.tree"), lambda path: path in referred.trees),
        ("bytecode", places.layers.glob("bytecode/*.zip"), lambda path: path.name[:64] in referred.files),
        (
            "record",
            places.builds.glob("*.json"),
            lambda path: path.stem in builds or not _decided(places, path.stem, referred),
        ),
        ("differing build", places.differing.glob("*"), lambda path: False),  # kept for looking
        ("run directory", places.runs.glob("*"), lambda path: path.name in running),
        (
            "blessed cache",
            places.trees.glob("*"),
            lambda path: path.name in referred.blessed | mounted | pinned | studied,
        ),
        ("staged cache", places.staged.glob("*"), lambda path: path.name in running | referred.instances | pinned),
        ("evidence of a bless", places.blessing.glob("*/*"), lambda path: _is_evidence(path, referred)),
        ("gate record", places.gates.glob("*.json"), lambda path: str(path) not in outdated),
        ("pin", places.pins.glob("*.json"), pins.in_force),
    ]
    removed = sizes.RemovedFiles()
    for kind, paths, keep in candidates:
        if referred.unknown and kind in _OF_PROJECTS:
            continue
        for path in sorted(paths):
            if path.lstat().st_mtime < oldest and not keep(path):
                note = _ARCHIVED if kind == "blessed cache" and path.name in referred.archived else ""
                beside = [path.with_suffix(".json")] if kind == "layer" else []
                yield Piece(kind, _name(kind, path), removed.freed_by(path, *beside), path, note)


def _is_evidence(bless: Path, referred: References) -> bool:
    """Return whether the directory BLESS is needed: by a manifest, or as the last bless of its instance."""
    instance = bless.parent
    if instance.name in referred.instances or bless == evidence.newest(instance):
        return True
    if _name("evidence of a bless", bless) in referred.pinned or bless in dict(referred.rejected):
        return True
    return evidence.needed(bless, referred.logs)


def _name(kind: Kind, path: Path) -> str:
    return f"{path.parent.name}/{path.name}" if kind == "evidence of a bless" else path.name


def _diff_id(tar: Path) -> str:
    try:
        return str(cast("Any", canonical.decode(reading.content(tar.with_suffix(".json"), reading.STATE)))["diff_id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""  # without its JSON no tar is used


def remove(piece: Piece, places: Places) -> None:
    """Remove a PIECE that is a file or a directory. The JSON of a layer goes first: without it no tar is used.

    A tree that a process has pinned meanwhile stays.
    """
    assert piece.path is not None
    if piece.kind == "layer":
        piece.path.with_suffix(".json").unlink(missing_ok=True)
    if piece.kind in {"blessed cache", "staged cache"}:
        with Pins(places.pins).still() as pinned:
            if piece.path.name in pinned:
                return
            if piece.path.name in TreeStore(places.trees).list() and piece.kind == "blessed cache":
                TreeStore(places.trees).remove(piece.path.name)
            else:
                staging.discard(piece.path)
    elif piece.path.is_dir() and not piece.path.is_symlink():  # a link is removed, not its target
        shutil.rmtree(piece.path)
    else:
        piece.path.unlink(missing_ok=True)


def forget(places: Places, project_ids: Iterable[str]) -> None:
    """Forget which builds the projects of PROJECT_IDS have used. Their bisects stay: another project may adopt one."""
    for project_id in project_ids:
        shutil.rmtree(places.works / project_id / "builds", ignore_errors=True)


# What is referred to


def referred(
    projects: Iterable[Project], places: Places, lost: Iterable[Refusal] = (), forgotten: Collection[str] = ()
) -> References:
    """Return what PROJECTS, unfinished bisects, held locks and pins refer to in PLACES.

    LOST are refusals of projects that are gone. FORGOTTEN are the ids of projects that refer to nothing any more.
    `unknown` of the result has LOST and a refusal for every file that cannot be read; each names its project.
    """
    each: list[References] = []
    known: set[str] = {*forgotten}
    unknown: list[Refusal] = [*lost]
    kinds = [(project, _references_of) for project in projects] + [(packaged(), _blessed_and_required)]
    for project, references_of in kinds:
        try:
            each.append(references_of(project, places))
            known.update([project.id] if references_of is _references_of else [])  # else its builds were not looked at
        except Refused as refused:
            unknown.extend(replace(refusal, where=f"{project.root}: {refusal.where}") for refusal in refused.refusals)
        except OSError as error:  # a directory that cannot be listed
            unknown.extend(reading.refused(str(error.filename), error).refusals)
    builds = {build_hash for references in each for build_hash in references.builds}
    for path in _bisects(places, forgotten):
        try:
            state = journal.read(path / "journal.jsonl").state
        except Refused as refused:
            # NV107: none was ever written there
            unknown.extend(refusal for refusal in refused.refusals if refusal.code != "NV107")
        else:
            builds.update(built.build_hash for built in state.builds.values() if state.end is None)
    diff_ids: set[str] = set()
    for build_hash in builds:
        record = buildrecord.read(places.builds, build_hash)
        diff_ids.update(layer.diff_id for layer in (record.layers if record is not None else ()))
    holders = [lock.holder for lock in locks.status(places.locks) if lock.holder is not None]
    with Pins(places.pins).still() as pinned:
        return References(
            frozenset(builds),
            frozenset().union(*(references.files for references in each)),
            frozenset(diff_ids),
            frozenset().union(*(references.trees for references in each)),
            frozenset().union(*(references.blessed for references in each)),
            frozenset(holder.instance for holder in holders if holder.instance is not None),
            frozenset().union(*(references.logs for references in each)),
            frozenset().union(*(references.archived for references in each)),
            frozenset().union(*(references.gate_days for references in each)),
            pinned,
            frozenset(known),
            tuple(unknown),
            frozenset().union(*(references.restorable for references in each)),
            tuple(rejected.kept(places.blessing, time.time())),
        )


def _bisects(places: Places, forgotten: Collection[str]) -> Iterator[Path]:
    """Yield the directory of each bisect, of every recorded project that is not FORGOTTEN, and of an older nvllm."""
    yield from reading.listed(places.state / "bisect", "*")
    for work in reading.listed(places.works, "*"):
        if work.name not in forgotten and (places.projects / work.name).is_symlink():
            yield from reading.listed(work / "bisect", "*")


def _references_of(project: Project, places: Places) -> References:
    """Return what the locks, the current builds and the blessings of PROJECT refer to."""
    files: set[str] = set()
    for requirements in reading.listed(project.root / "images", "*-build-requirements.txt"):
        native = dockerfiles.native_wheels(
            reading.text(requirements, reading.CONFIGURATION), project.show(requirements)
        )
        files.update(wheel.file.sha256 for wheel in native)
    names = project.image_names()
    read = [
        lockdoc.read(path, project.show(path)) for path in reading.listed(project.root / "manifests", "*.lock.json")
    ]
    current = [lock for lock in read if lock.image in names]
    for lock in current:
        further = (*(tool.file for tool in lock.tools), *lock.vllm.native_files)
        files.update(file.sha256 for file in (*lock.files, *further))
    locked = [name for name in names if project.lock(name).exists()]
    return replace(
        _blessed_and_required(project, places),
        builds=frozenset(identity.load_build(project, name, None)[0].build_hash for name in locked),
        files=frozenset(files),
        trees=frozenset(LayerCache(places.layers).tree(factors) for lock in current for factors in builder.trees(lock)),
    )


def _blessed_and_required(project: Project, places: Places) -> References:
    """Return what the blessings of PROJECT and the profiles of its images refer to."""
    specs = [specfile.of(project, name) for name in project.image_names()]
    needs = [need for spec in specs for profile in spec.profiles.values() for need in gates.needs(profile.gates)]
    blessings = Blessings.of_project(project, places)
    in_force, restorable = blessings.trees(), blessings.restorable()
    return References(
        blessed=in_force | restorable,
        logs=blessings.logs(),
        archived=frozenset(manifest.tree_hash for _, manifest in whole(blessings.archived())),
        gate_days=frozenset((need.gate, need.days) for need in needs),
        restorable=restorable - in_force,
    )
