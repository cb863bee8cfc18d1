"""What the commands of `nvllm dev` ask of a work tree: whether it is of this image, and what it changes of it."""

from __future__ import annotations

import shlex
from pathlib import Path

from nvllm.cli.frame import App
from nvllm.core.refusal import refuse
from nvllm.image.identity import Build
from nvllm.layers.wheel import Wheel
from nvllm.patches import seriesfile
from nvllm.port import overlay
from nvllm.port.devrecord import DevTree
from nvllm.port.overlay import TreeDifference
from nvllm.sources.store import Store
from nvllm.sources.worktree import WorkTree


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


def difference(app: App, directory: Path, record: DevTree, build: Build) -> TreeDifference:
    """Return what the files in DIRECTORY, as they stand, are otherwise than in the image of BUILD.

    The wheel of BUILD is in the store. Raises Refused as `overlay.difference` does.
    """
    where = app.project.series(record.series)
    diffs = [*seriesfile.diffs(where, build.patches, app.project.show(where)).values()]
    work, locked = WorkTree(directory), build.lock.vllm_wheel
    changed = work.changed(record.base)
    pinned = work.in_commit(record.base, changed)
    with Wheel(Store(app.places.store).path(locked.file.sha256), locked.file.filename) as wheel:
        return overlay.difference(directory, changed, pinned, diffs, wheel)
