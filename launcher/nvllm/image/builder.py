"""Making images: fetch what the store lacks, make the layers that the cache lacks, load what the engine lacks.

This is the one build path: the command, the demo, the benchmarks and everything that rebuilds goes through it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from nvllm.core.lock import Lock, LockedDebianBase, LockedFile, LockedRegistryBase
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.host import facts as host
from nvllm.image import record as buildrecord
from nvllm.image import registry_base
from nvllm.image.build import Builder
from nvllm.image.engine import Engine
from nvllm.image.identity import Build
from nvllm.image.oci import Image, Lower
from nvllm.image.record import Record, RecordedLayer
from nvllm.kernels import toolchain
from nvllm.layers.cache import LayerCache
from nvllm.layers.tar import Layer
from nvllm.patches import seriesfile
from nvllm.sources import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store

_UNPACKED = 4.0
"""Bytes of layers per byte of locked files: 3.8 for the image cpu, whose wheels unpack to 2.4 GB."""


class Maker:
    """Makes the images of PROJECT in PLACES. OFFLINE: nothing may be fetched."""

    def __init__(self, project: Project, places: Places, progress: Progress, *, offline: bool) -> None:
        self.project = project
        self.places = places
        self.progress = progress
        self.offline = offline

    def image(self, made: Build, below: Sequence[Lower] = ()) -> Image:
        """Return the finished image of MADE, on the layers BELOW of its base if that is an image of a registry.

        Raises Refused: what `fetch` and `Builder` refuse, NV506 if the layers would not fit on the disk, and NV218,
        before anything is fetched, if vLLM has still to be compiled.
        """
        refuse_any(_uncompiled(made))
        builder = self.builder(made, (*made.lock.files, *toolchain.files(made.lock)))
        _require_space(made.lock, self.places)
        return builder.image(below)

    def upper(self, made: Build) -> list[Layer]:
        """Return the layers of MADE that its patch set decides, made from the source and what else they take alone.

        They have the bytes that they have in the whole image. Raises Refused as `fetch` and `Builder` do.
        """
        lock = made.lock
        debs = tuple(p.file for p in lock.base.packages) if isinstance(lock.base, LockedDebianBase) else ()
        compiling = (toolchain.of_image(lock).file, *toolchain.files(lock)) if made.spec.targets else ()
        return self.builder(made, (*debs, lock.vllm.source, lock.vllm_wheel.file, *compiling)).upper()

    def builder(self, made: Build, files: Sequence[LockedFile]) -> Builder:
        """Return what makes the layers of MADE, with FILES of its lock in the store. Raises Refused as `fetch` does."""
        store = Store(self.places.store)
        fetch.fetch(files, store, Sources.of(made.lock, os.environ), self.progress, offline=self.offline)
        directory = self.project.series(made.spec.patches.series)
        diffs = seriesfile.diffs(directory, made.patches, self.project.show(directory))
        ordered = tuple(diffs[patch.id] for patch in made.patches)
        return Builder(made, ordered, store, LayerCache(self.places.layers), self.progress)

    def kernels(self, made: Build) -> Builder:
        """Return what makes the kernels layer of MADE, with only what that takes in the store.

        Raises Refused NV315 if there is nothing to compile for, and as `fetch` does.
        """
        lock = made.lock
        if not made.spec.targets:
            where, cure = f"images/{made.spec.name}.yaml", "name an image with targets, such as sm120"
            raise refuse("NV315", where, "targets to compile kernels for", "none", cure)
        files = (lock.vllm.source, lock.vllm_wheel.file, toolchain.of_image(lock).file, *toolchain.files(lock))
        return self.builder(made, files)

    def into_engine(self, made: Build, engine: Engine, tags: Sequence[str]) -> Record:
        """Make the image of MADE, load it into ENGINE under TAGS, put it on record and return the record."""
        base = made.lock.base
        below: tuple[Lower, ...] = ()
        if isinstance(base, LockedRegistryBase):
            below = registry_base.layers(base, made.lock.platform, engine, self.progress, offline=self.offline)
        finished = self.image(made, below)
        layers = tuple(RecordedLayer(one.kind, one.diff_id, one.size) for one in finished.layers)
        manifest = next(iter(finished.ids[1:]), None)
        record = Record(made.spec.name, made.build_hash, finished.id, layers, manifest)
        # Before the load: an image that an engine holds and that is not on record would never be cleared away.
        buildrecord.write(self.places.builds, record)
        engine.load(finished, tags, self.progress)
        return record


def _uncompiled(made: Build) -> Iterator[Refusal]:
    if made.uncompiled:
        name, vllm = made.spec.name, made.lock.vllm
        where, expected = f"{name}: lock, .wheels", f"the wheel of {vllm.distribution} {vllm.version}, compiled"
        cure = f"compile it, as docs/{name}.md shows, and lock it: nvllm lock {name} --compiled WHEEL"
        yield Refusal("NV218", where, expected, "none", cure)


def _require_space(lock: Lock, places: Places) -> None:
    """Refuse a build whose layers would not fit, unless most of them are there already."""
    needed = int(_UNPACKED * sum(file.size for file in lock.files))
    present = sum(path.stat().st_size for path in places.layers.glob("*.tar"))
    free = host.disk(places.layers).free
    if free < needed - present:
        raise refuse(
            "NV506",
            str(places.layers),
            f"about {needed / 2**30:.1f} GiB for the layers",
            f"{free / 2**30:.1f} GiB free",
            "nvllm gc, or set NVLLM_HOME to a larger disk",
        )
