"""Garbage: what no project and no process refers to any more, and its removal.

These keep a piece: a lock of a project, the current build of an image, an unfinished bisect, a manifest in force, and
a container that nvllm started. A piece younger than an hour is kept as well, because a build may be about to use it.

An archived manifest keeps no cache: no host that has seen its successor serves it, and every rebless would leave
another cache behind for ever. It keeps its logs, which are small.

Of the records of a hardware gate the newest one of each machine stays, and every one that may satisfy a profile.

If a file of a project cannot be read, nobody knows what that project refers to, and nothing is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from nvllm.bisect import journal
from nvllm.bless import evidence
from nvllm.cache import staging
from nvllm.cache.blessings import Blessings
from nvllm.cache.store import TreeStore
from nvllm.core import canonical, reading
from nvllm.core.paths import Places, Project, packaged
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.host import gate_records, gates, locks
from nvllm.host.facts import TREE_LABEL, ContainerFact, ImageFacts
from nvllm.host.gates import FiledRecord, GateName
from nvllm.image import builder, dockerfiles, identity
from nvllm.image import record as buildrecord
from nvllm.layers.cache import LayerCache
from nvllm.lock import document as lockdoc
from nvllm.spec import file as specfile

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
]


_ARCHIVED = "only an archived manifest names it"


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing to remove. SIZE is in bytes; that of an image includes layers that it shares. NOTE is shown with it."""

    kind: Kind
    name: str
    size: int
    path: Path | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class References:
    """What must be kept: build hashes, sha256 of locked files, diff_ids of layers, and base trees.

    BLESSED are hashes of cache trees, INSTANCES those whose locks are held, LOGS sha256 of logs that manifests name.
    ARCHIVED are hashes of trees that only archived manifests name; they are not kept, and a note says so. GATE_DAYS are
    the gates that profiles require, each with the days for which a record of it may satisfy one.
    """

    builds: frozenset[str]
    files: frozenset[str]
    layers: frozenset[str]
    trees: frozenset[Path]
    blessed: frozenset[str] = frozenset()
    instances: frozenset[str] = frozenset()
    logs: frozenset[str] = frozenset()
    archived: frozenset[str] = frozenset()
    gate_days: frozenset[tuple[GateName, int]] = frozenset()


def images(
    places: Places,
    found: Iterable[ImageFacts],
    containers: Iterable[ContainerFact],
    referred: References,
    oldest: float,
) -> Iterator[Piece]:
    """Yield the images among FOUND whose build record is older than OLDEST, and that are neither current nor in use.

    An image without a record in PLACES was built by another user, or for another NVLLM_HOME, and is left alone.
    """
    keep = referred.builds | _used(containers)
    known: dict[str, Path] = {}
    for path in places.builds.glob("*.json"):
        record = buildrecord.read(places.builds, path.stem)
        if record is not None and path.stem not in keep and path.lstat().st_mtime < oldest:
            known.update(dict.fromkeys(record.ids, path))
    for one in found:
        if one.id in known:
            yield Piece("image", " ".join(one.tags) or one.id, one.size)


def _used(containers: Iterable[ContainerFact]) -> frozenset[str]:
    """Return the build hashes that have a container, which inherits the labels of its image."""
    return frozenset(one.labels.get("nvllm.build-hash", "") for one in containers)


def files(places: Places, referred: References, containers: Sequence[ContainerFact], oldest: float) -> Iterator[Piece]:
    """Yield what is below PLACES, was last changed before OLDEST (seconds since 1970), and is not referred to."""
    running = {one.name for one in containers if one.ours}
    mounted = {one.labels[TREE_LABEL] for one in containers if TREE_LABEL in one.labels}
    outdated = {one.path for one in gates.outdated(_gate_records(places), referred.gate_days, oldest)}
    builds = referred.builds | _used(containers)  # nvllm removes no image without a record
    candidates: list[tuple[Kind, Iterable[Path], Callable[[Path], bool]]] = [
        ("locked file", places.store.glob("sha256/*/*"), lambda path: path.name in referred.files),
        ("partial download", places.store.glob("partial/*"), lambda path: False),
        ("layer", places.layers.glob("*.tar"), lambda path: _diff_id(path) in referred.layers),
        ("base tree", places.layers.glob("*.tree"), lambda path: path in referred.trees),
        ("bytecode", places.layers.glob("bytecode/*.zip"), lambda path: path.name[:64] in referred.files),
        ("record", places.builds.glob("*.json"), lambda path: path.stem in builds),
        ("differing build", places.differing.glob("*"), lambda path: False),  # kept for looking
        ("run directory", places.runs.glob("*"), lambda path: path.name in running),
        ("blessed cache", places.trees.glob("*"), lambda path: path.name in referred.blessed | mounted),
        ("staged cache", places.staged.glob("*"), lambda path: path.name in running | referred.instances),
        ("evidence of a bless", places.blessing.glob("*/*"), lambda path: _is_evidence(path, referred)),
        ("gate record", places.gates.glob("*.json"), lambda path: str(path) not in outdated),
    ]
    for kind, paths, keep in candidates:
        for path in sorted(paths):
            if path.lstat().st_mtime < oldest and not keep(path):
                note = _ARCHIVED if kind == "blessed cache" and path.name in referred.archived else ""
                yield Piece(kind, _name(kind, path), _size(path), path, note)


def _gate_records(places: Places) -> tuple[FiledRecord, ...]:
    """Return the records of hardware gates in PLACES. Raises Refused NV109 if they cannot be listed."""
    try:
        return gate_records.filed(places.gates)
    except OSError as error:
        raise reading.refused(str(places.gates), error) from error


def _is_evidence(bless: Path, referred: References) -> bool:
    """Return whether the directory BLESS is needed: by a manifest, or as the last bless of its instance."""
    instance = bless.parent
    if instance.name in referred.instances or bless == evidence.newest(instance):
        return True
    return evidence.needed(bless, referred.logs)


def _name(kind: Kind, path: Path) -> str:
    return f"{path.parent.name}/{path.name}" if kind == "evidence of a bless" else path.name


def _diff_id(tar: Path) -> str:
    try:
        return str(cast("Any", canonical.decode(reading.content(tar.with_suffix(".json"), reading.STATE)))["diff_id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""


def _size(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(inner.lstat().st_size for inner in path.rglob("*"))
    return path.lstat().st_size


def remove(piece: Piece) -> None:
    """Remove a PIECE that is a file or a directory. The JSON of a layer goes first: without it no tar is used."""
    assert piece.path is not None
    if piece.kind == "layer":
        piece.path.with_suffix(".json").unlink(missing_ok=True)
    if piece.kind == "blessed cache" and piece.path.name in TreeStore(piece.path.parent).list():
        TreeStore(piece.path.parent).remove(piece.path.name)
    elif piece.kind in {"blessed cache", "staged cache"}:
        staging.discard(piece.path)
    elif piece.path.is_dir() and not piece.path.is_symlink():  # a link is removed, not its target
        shutil.rmtree(piece.path)
    else:
        piece.path.unlink(missing_ok=True)


# What is referred to


def referred(projects: Iterable[Project], places: Places) -> References:
    """Return what PROJECTS, unfinished bisects and held locks refer to in PLACES.

    Raises Refused for every file that cannot be read; each refusal names its project.
    """
    found: list[References] = []
    refusals: list[Refusal] = []
    kinds = [(project, _references_of) for project in projects] + [(packaged(), _blessed_and_required)]
    for project, references_of in kinds:
        try:
            found.append(references_of(project, places))
        except Refused as refused:
            refusals.extend(replace(one, where=f"{project.root}: {one.where}") for one in refused.refusals)
        except OSError as error:  # a directory that cannot be listed
            refusals.extend(reading.refused(str(error.filename), error).refusals)
    builds = {build_hash for one in found for build_hash in one.builds}
    blessed = {tree_hash for one in found for tree_hash in one.blessed}
    for path in reading.listed(places.state / "bisect", "*"):
        try:
            state = journal.load(path / "journal.jsonl").state
        except Refused as refused:
            refusals.extend(one for one in refused.refusals if one.code != "NV107")  # none was ever written there
        else:
            builds.update(built.build_hash for built in state.builds.values() if state.end is None)
    refuse_any(refusals)
    diff_ids: set[str] = set()
    for build_hash in builds:
        record = buildrecord.read(places.builds, build_hash)
        diff_ids.update(layer.diff_id for layer in (record.layers if record is not None else ()))
    holders = [one.holder for one in locks.status(places.locks) if one.holder is not None]
    if any(one.command.startswith("nvllm bless ") for one in holders):  # no manifest names its tree yet
        blessed.update(TreeStore(places.trees).list())
    return References(
        frozenset(builds),
        frozenset().union(*(one.files for one in found)),
        frozenset(diff_ids),
        frozenset().union(*(one.trees for one in found)),
        frozenset(blessed),
        frozenset(one.instance for one in holders if one.instance is not None),
        frozenset().union(*(one.logs for one in found)),
        frozenset().union(*(one.archived for one in found)),
        frozenset().union(*(one.gate_days for one in found)),
    )


def _references_of(project: Project, places: Places) -> References:
    """Return what the locks, the current builds and the blessings of PROJECT refer to."""
    files: set[str] = set()
    for requirements in reading.listed(project.root / "images", "*-build-requirements.txt"):
        native = dockerfiles.native_wheels(
            reading.text(requirements, reading.CONFIGURATION), project.show(requirements)
        )
        files.update(one.file.sha256 for one in native)
    names = project.image_names()
    read = [
        lockdoc.read(path, project.show(path)) for path in reading.listed(project.root / "manifests", "*.lock.json")
    ]
    current = [lock for lock in read if lock.image in names]
    for lock in current:
        files.update(file.sha256 for file in (*lock.files, *(tool.file for tool in lock.tools)))
    locked = [name for name in names if project.lock(name).exists()]
    return replace(
        _blessed_and_required(project, places),
        builds=frozenset(identity.load_build(project, name, None)[0].build_hash for name in locked),
        files=frozenset(files),
        trees=frozenset(LayerCache(places.layers).tree(builder.tree_factors(lock)) for lock in current),
    )


def _blessed_and_required(project: Project, places: Places) -> References:
    """Return what the blessings of PROJECT and the profiles of its images refer to."""
    specs = [specfile.of(project, name) for name in project.image_names()]
    needs = [need for spec in specs for profile in spec.profiles.values() for need in gates.needs(profile.gates)]
    blessings = Blessings.of_project(project, places)
    return References(
        builds=frozenset(),
        files=frozenset(),
        layers=frozenset(),
        trees=frozenset(),
        blessed=blessings.trees(),
        logs=blessings.logs(),
        archived=frozenset(one.manifest.tree_hash for one in blessings.archived() if one.manifest is not None),
        gate_days=frozenset((need.gate, need.days) for need in needs),
    )
