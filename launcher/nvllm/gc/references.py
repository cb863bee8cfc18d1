"""References: what the projects on this host, and what runs here, still need of cache and state.

What nobody refers to is `garbage.py`'s to decide. A project whose files cannot be read refers to nobody knows
what; then nothing is decided at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nvllm.bisect import journal
from nvllm.cache.blessings import Blessings
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import Refusal, Refused
from nvllm.gc.garbage import Referred
from nvllm.host import locks
from nvllm.image import builder, dockerfiles
from nvllm.image import record as buildrecord
from nvllm.layers.cache import LayerCache
from nvllm.lock import document as lockdoc
from nvllm.serve import examine


def referred(projects: Iterable[Project], places: Places) -> Referred:
    """Return what PROJECTS, bisects that are not over, and held locks refer to in PLACES.

    Raises Refused with all that cannot be read, named by the project where it lies.
    """
    builds: set[str] = set()
    files: set[str] = set()
    trees: set[Path] = set()
    blessed: set[str] = set()
    logs: set[str] = set()
    archived: set[str] = set()
    refusals: list[Refusal] = []
    for project in projects:
        try:
            found = _of(project, places)
        except Refused as refused:
            refusals.extend(replace(one, where=f"{project.root}: {one.where}") for one in refused.refusals)
            continue
        builds |= found.builds
        files |= found.files
        trees |= found.trees
        blessed |= found.blessed
        logs |= found.logs
        archived |= found.archived
    if refusals:
        raise Refused(refusals)
    for state in journal.unfinished(places.state / "bisect"):
        builds.update(built.build_hash for built in state.builds.values())
    diff_ids: set[str] = set()
    for build_hash in builds:
        record = buildrecord.read(places.builds, build_hash)
        diff_ids.update(layer.diff_id for layer in (record.layers if record is not None else ()))
    holders = [one.holder for one in locks.status(places.locks) if one.holder is not None]
    if any(one.command.startswith("nvllm bless ") for one in holders):  # its tree is in no manifest yet
        blessed.update(TreeStore(places.trees).list())
    return Referred(
        frozenset(builds),
        frozenset(files),
        frozenset(diff_ids),
        frozenset(trees),
        frozenset(blessed),
        frozenset(one.instance for one in holders if one.instance is not None),
        frozenset(logs),
        frozenset(archived),
    )


def _of(project: Project, places: Places) -> Referred:
    """Return what the locks, the present builds and the blessings of PROJECT refer to."""
    builds: set[str] = set()
    files: set[str] = set()
    trees: set[Path] = set()
    for requirements in sorted((project.root / "images").glob("*-build-requirements.txt")):
        native = dockerfiles.native_wheels(requirements.read_text(), project.show(requirements))
        files.update(one.file.sha256 for one in native)
    names = project.image_names()
    for path in sorted((project.root / "manifests").glob("*.lock.json")):
        lock = lockdoc.read(path, project.show(path))
        if lock.image in names:
            files.update(file.sha256 for file in (*lock.files, *(tool.file for tool in lock.tools)))
            trees.add(LayerCache(places.layers).tree(builder.tree_factors(lock)))
    for name in names:
        if project.lock(name).exists():
            made, _ = examine.load_build(project, name, None)
            builds.add(made.build_hash)
    held = Blessings(project.blessed, places.blessings)
    archived = {one.manifest.tree_hash for one in held.archived() if one.manifest is not None}
    return Referred(
        frozenset(builds),
        frozenset(files),
        frozenset(),
        frozenset(trees),
        held.trees(),
        logs=held.logs(),
        archived=frozenset(archived),
    )
