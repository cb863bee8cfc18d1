"""Holding a build against the recorded digests of its project, and recording a build.

What is not as recorded is refused and kept for looking: the layers that were built, and the recorded ones if the layer
cache or the engine still has them. The layer cache loses them, so that the next build makes them again.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nvllm.core import canonical, durable, paths
from nvllm.core.canonical import Json
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.engine.engine import Engine
from nvllm.host.facts import EngineProblem
from nvllm.image import contents, difference, digests, sketch
from nvllm.image.buildrecord import Record
from nvllm.image.contents import FileRange, StoredLayer
from nvllm.image.digests import BuildDigests, Deviation, LayerDigest, Outcome
from nvllm.image.identity import Build
from nvllm.layers import oci
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Image
from nvllm.layers.tarlayer import Layer


def of_layers(build: Build, layers: Sequence[Layer]) -> BuildDigests:
    """Return the digests of LAYERS, those of the patch set of BUILD."""
    return BuildDigests(build.build_hash, tuple(LayerDigest(layer.kind, layer.diff_id, layer.size) for layer in layers))


def of_image(build: Build, image: Image) -> BuildDigests:
    """Return the digests of IMAGE, which BUILD gave."""
    layers = of_layers(build, image.layers).layers
    return BuildDigests(build.build_hash, layers, image.id, next(iter(image.ids[1:]), None))


def of_record(record: Record) -> BuildDigests:
    """Return the digests in RECORD, the record of a build on this host."""
    layers = tuple(LayerDigest(layer.kind, layer.diff_id, layer.size) for layer in record.layers)
    return BuildDigests(record.build_hash, layers, record.image_id, record.manifest_id)


def outcome(project: Project, image: str, built: BuildDigests) -> tuple[Outcome, tuple[Deviation, ...]]:
    """Compare BUILT with what PROJECT has recorded of IMAGE. Raises Refused NV309 if that is damaged."""
    return digests.compare(digests.of_project(project, image), built)


def record(project: Project, image: str, built: BuildDigests, layers: Sequence[Layer]) -> Path:
    """Write BUILT into the recorded digests of IMAGE in PROJECT, and return their path. Other platforms stay.

    LAYERS are those of BUILT on this host. Raises Refused NV309 if the file is damaged, NV920 if it cannot be written.
    """
    path = project.digests(image)
    before = digests.read(path, project.show(path))
    sketched = tuple(map(_sketched, built.layers, layers))
    digests.write(path, digests.recorded(before, image, project.platform, replace(built, layers=sketched)))
    return path


def _sketched(digest: LayerDigest, layer: Layer) -> LayerDigest:
    rows = sketch.rows(FileRange(layer.path, 0, layer.size))
    return replace(digest, sketch=sketch.sketch(rows.values()) if len(rows) > SKETCHED else None)


def verify(layers: Sequence[Layer], progress: Progress) -> None:
    """Hash LAYERS, which the layer cache may have had for long. Raises Refused NV308 for those that have changed."""
    changed: list[Refusal] = []
    with progress.task("hash layers", sum(layer.size for layer in layers), "B") as task:
        for layer in layers:
            actual = "sha256:" + canonical.sha256_file(layer.path)
            if actual != layer.diff_id:
                cure = f"rm {shlex.quote(str(layer.path))}"
                changed.append(Refusal("NV308", f"layer cache: layer {layer.kind}", layer.diff_id, actual, cure))
            task.advance(layer.size)
    refuse_any(changed)


def keep(directory: Path, sides: Mapping[str, Sequence[Layer]]) -> Path:
    """Write the layers of SIDES, by name of the side, below DIRECTORY, in place of what is there; return DIRECTORY.

    `nvllm image diff` reads them. Raises Refused NV920 if they cannot be written.
    """
    shutil.rmtree(directory, ignore_errors=True)
    with durable.writing(directory, "NV920"):
        paths.ensure(directory)
    for side, layers in sides.items():
        listed: Json = [{"kind": layer.kind, "diff_id": layer.diff_id, "size": layer.size} for layer in layers]
        oci.write_layers(layers, {"layers": listed}, directory / side)
    return directory


SKETCHED = 64
"""A layer of more entries gets a sketch in the record. A smaller one holds one file of a patch, or a few."""


@dataclass(frozen=True, slots=True)
class Witness:
    """Holds builds of PROJECT against its record. CONNECT asks for an engine that may have the recorded image."""

    project: Project
    places: Places
    connect: Callable[[], Engine | EngineProblem]

    def hold(self, image: str, built: BuildDigests, layers: Sequence[Layer]) -> Outcome:
        """Return how BUILT, of IMAGE, compares with the record. LAYERS are its layers, on this host.

        Raises Refused NV308 for what is not as recorded, after keeping both sides of it as far as they are here.
        """
        result, deviations = outcome(self.project, image, built)
        self._refuse(image, built, layers, deviations)
        return result

    def hold_some(self, image: str, built: BuildDigests, layers: Sequence[Layer]) -> Outcome:
        """Do as `hold` does for LAYERS that are only some of those of a build."""
        result, deviations = digests.compare_some(digests.of_project(self.project, image), built)
        self._refuse(image, built, layers, deviations)
        return result

    def _refuse(
        self, image: str, built: BuildDigests, layers: Sequence[Layer], deviations: Sequence[Deviation]
    ) -> None:
        if not deviations:
            return
        differing = {deviation.layer: deviation for deviation in deviations if deviation.layer is not None}
        own = [layer for layer in layers if layer.kind in differing]
        with tempfile.TemporaryDirectory(prefix="nvllm-recorded-") as scratch:
            there = list(self._there(image, {layer.kind: differing[layer.kind] for layer in own}, Path(scratch)))
            kept = keep(self.places.differing / built.build_hash[:12], {"recorded": there, "built": own})
            refusals = [*self._compared(image, own, there, kept)]
        for layer in own:  # or every later build would take the same bytes from the cache
            LayerCache(self.places.layers).forget(layer)
        # Ids differ because a layer does; they are worth saying only where no layer does.
        rest = list(differing.values()) or list(deviations)
        named = {deviation.where.partition(": ")[2].partition(": ")[0] for deviation in refusals}
        label, cure = self._shown(image), _elsewhere(image, kept)
        for deviation in rest:
            if deviation.what not in named:
                expected, made = deviation.recorded or "no such layer", deviation.built or "no such layer"
                refusals.append(Refusal("NV308", f"{label}: {deviation.what}", expected, made, cure))
        raise Refused(refusals)

    def _shown(self, image: str) -> str:
        return self.project.show(self.project.digests(image))

    def _compared(self, image: str, own: Sequence[Layer], there: Sequence[Layer], kept: Path) -> Iterator[Refusal]:
        """Yield how the built layers OWN differ from the recorded ones: from THERE, or by their sketches in the record.

        KEPT is where both are kept.
        """
        label, diff = self._shown(image), shlex.join(["nvllm", "image", "diff", f"{kept}/recorded", f"{kept}/built"])
        recorded, made = contents.of_layers("recorded", there), contents.of_layers("built", own)
        differing = list(difference.images(recorded, made))
        yield from difference.refusals(differing, "NV308", label, diff)
        record = digests.of_project(self.project, image)
        sketches = {layer.name: layer.sketch for layer in record.layers} if record is not None else {}
        for layer in own:
            text = sketches.get(layer.kind)
            if text is not None and layer.kind not in {other.kind for other in there}:
                rows = sketch.rows(FileRange(layer.path, 0, layer.size))
                named = list(sketch.differences(layer.kind, text, rows))
                yield from difference.refusals(named, "NV308", label, _elsewhere(image, kept))

    def _there(self, image: str, deviations: Mapping[str, Deviation], scratch: Path) -> Iterator[Layer]:
        """Yield the recorded layers, DEVIATIONS by name, that the layer cache or the engine has."""
        cache, saved = LayerCache(self.places.layers), None
        for name, deviation in deviations.items():
            if deviation.recorded is None:
                continue
            path = cache.holding(deviation.recorded)
            if path is None:
                saved = self._saved(image, cache, scratch) if saved is None else saved
                if deviation.recorded in saved:
                    path = scratch / f"{deviation.recorded.replace(':', '-')}.layer"
                    saved[deviation.recorded].tar().copy(path)
            if path is not None:
                yield Layer(name, deviation.recorded, path.stat().st_size, path)

    def _saved(self, image: str, cache: LayerCache, scratch: Path) -> Mapping[str, StoredLayer]:
        """Return the layers of the recorded image by diff_id; none if the engine does not have it."""
        recorded, engine = digests.of_project(self.project, image), self.connect()
        if recorded is None or isinstance(engine, EngineProblem):
            return {}
        for reference in filter(None, (recorded.image_id, recorded.manifest)):
            if engine.image(reference) is not None:
                layers = contents.of_engine(reference, engine, cache, scratch).layers
                return {layer.diff_id: layer for layer in layers}
        return {}


def _elsewhere(image: str, kept: Path) -> str:
    """Return what to do where the recorded layers are not on this host; those of IMAGE that were built are at KEPT."""
    diff = shlex.join(["nvllm", "image", "diff", "good", f"{kept}/built"])
    return f"nvllm build {image} --layout good, where it is as recorded; then {diff}"
