"""What the commands of `nvllm dev` ask of a work tree: whether it is of its image, and what it changes of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from nvllm.cli.build import fresh_build, image_builder
from nvllm.cli.frame import App
from nvllm.core.refusal import refuse
from nvllm.engine.engine import Engine
from nvllm.image import buildrecord, presence
from nvllm.image.development import DevelopmentBuilder
from nvllm.image.identity import Build
from nvllm.layers.wheel import Wheel
from nvllm.port import devrecord, overlay
from nvllm.port.devrecord import DevTree
from nvllm.port.overlay import TreeDifference
from nvllm.serve import fresh
from nvllm.sources.store import Store
from nvllm.sources.worktree import WorkTree
from nvllm.spec import specfile


def same_origin(app: App, directory: Path, record: DevTree, series: str, archive: str) -> None:
    """Raise Refused NV610 unless the tree in DIRECTORY is of SERIES on the source with the sha256 ARCHIVE.

    NV204 if the store lacks that source.
    """
    again = shlex.join(["nvllm", "dev", "start", record.image, f"{directory}-2"])
    cure = f"carry your commits to a new tree: {again}"
    if (record.series, record.source) != (series, archive):
        spec = app.project.show(app.project.spec(record.image))
        expected = f"a tree of patches/{series} on the source that the lock of {record.image} pins"
        raise refuse("NV610", f"{directory} and {spec}", expected, f"a tree of patches/{record.series}", cure)
    if not Store(app.places.store).has(archive):
        raise refuse(
            "NV204", str(directory), "the pinned source in the store", "none", f"fetch it: nvllm fetch {record.image}"
        )


@dataclass(frozen=True, slots=True)
class Development:
    """A work tree in DIRECTORY as it stands: what it CHANGED of its image, and the BUILD that is marked with that."""

    directory: Path
    build: Build
    changed: TreeDifference

    @property
    def summary(self) -> str:
        files = f"{len(self.changed.paths)} files of {self.directory}"
        return f"dev {self.changed.digest[:12]}: {files} over the image {self.build.spec.name}"


def development(app: App, directory: Path, profile: str | None) -> Development:
    """Return what stands in DIRECTORY, with PROFILE (None: the first of its image), which the build has as a `dev` one.

    Raises Refused NV610 and NV611, NV107 for PROFILE, and what a build raises whose lock is stale.
    """
    record = devrecord.read(directory)
    build = fresh_build(app, record.image, None)
    name = profile if profile is not None else next(iter(build.spec.profiles), "")
    named = specfile.named_profile(app.project, build.spec, name)
    same_origin(app, directory, record, build.spec.patches.series, build.lock.vllm.source.sha256)
    wheel = build.lock.vllm_wheel.file
    image_builder(app).fetched(build, [wheel])
    changed = _difference(app, directory, record, build)
    build = fresh.with_profile(build, name, replace(named, dev=True))
    return Development(directory, replace(build, development=changed.digest), changed)


def ensure_image(app: App, made: Development, docker: Engine) -> str:
    """Make the image of MADE where DOCKER does not hold it, and return the id by which DOCKER knows it."""
    known = presence.recorded(made.build, app.project, app.places, docker, made.build.tags)
    if known is None:
        changed = made.changed.patched
        builder = DevelopmentBuilder(app.project, app.places, app.progress, changed, offline=app.offline)
        known = builder.into_engine(made.build, docker, made.build.tags)
    image = buildrecord.in_engine(known, docker)
    return known.image_id if image is None else image.id


def _difference(app: App, directory: Path, record: DevTree, build: Build) -> TreeDifference:
    """Return what DIRECTORY has otherwise than the image of BUILD, whose wheel is in the store."""
    work, locked = WorkTree(directory), build.lock.vllm_wheel
    changed = work.changed(record.base)
    pinned = work.in_commit(record.base, changed)
    with Wheel(Store(app.places.store).path(locked.file.sha256), locked.file.filename) as wheel:
        return overlay.difference(directory, changed, pinned, build.diffs(app.project), wheel, build.spec.vllm.differs)
