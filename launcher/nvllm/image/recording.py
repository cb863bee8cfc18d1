"""Holding a build against the recorded digests of its project, and recording a build.

What is not as recorded is refused and kept for looking: the layers that were built, and the recorded ones if the layer
cache or the engine still has them. The layer cache loses them, so that the next build makes them again.
"""

from __future__ import annotations

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
from nvllm.host.facts import EngineProblem
from nvllm.image import contents, difference, digests, disassembly, oci, sketch
from nvllm.image.contents import Blob, StoredLayer
from nvllm.image.digests import BuildDigests, Deviation, LayerDigest, Outcome
from nvllm.image.engine import Engine
from nvllm.image.identity import Build
from nvllm.image.oci import Image
from nvllm.image.record import Record
from nvllm.layers.cache import LayerCache
from nvllm.layers.tar import Layer


def of_layers(build: Build, layers: Sequence[Layer]) -> BuildDigests:
    """Return the digests of LAYERS, those of the patch set of BUILD."""
    return BuildDigests(build.build_hash, tuple(LayerDigest(one.kind, one.diff_id, one.size) for one in layers))


def of_image(build: Build, image: Image) -> BuildDigests:
    """Return the digests of IMAGE, which BUILD gave."""
    layers = of_layers(build, image.layers).layers
    return BuildDigests(build.build_hash, layers, image.id, next(iter(image.ids[1:]), None))


def of_record(record: Record) -> BuildDigests:
    """Return the digests in RECORD, the record of a build on this host."""
    layers = tuple(LayerDigest(one.kind, one.diff_id, one.size) for one in record.layers)
    return BuildDigests(record.build_hash, layers, record.image_id, record.manifest_id)


def outcome(project: Project, image: str, built: BuildDigests) -> tuple[Outcome, tuple[Deviation, ...]]:
    """Compare BUILT with what PROJECT has recorded of IMAGE. Raises Refused NV309 if that is damaged."""
    return digests.compare(_of(project, image), built)


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
    rows = sketch.rows(Blob(layer.path, 0, layer.size))
    return replace(digest, sketch=sketch.sketch(rows.values()) if len(rows) > SKETCHED else None)


def verify(layers: Sequence[Layer], progress: Progress) -> None:
    """Hash LAYERS, which the layer cache may have had for long. Raises Refused NV308 for those that have changed."""
    changed: list[Refusal] = []
    with progress.task("hash layers", sum(layer.size for layer in layers), "B") as task:
        for layer in layers:
            found = "sha256:" + canonical.sha256_file(layer.path)
            if found != layer.diff_id:
                cure = f"rm {layer.path}, and build again"
                changed.append(Refusal("NV308", f"layer cache: layer {layer.kind}", layer.diff_id, found, cure))
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
        listed: Json = [{"kind": one.kind, "diff_id": one.diff_id, "size": one.size} for one in layers]
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
        said, deviations = outcome(self.project, image, built)
        if deviations:
            own = {one.what.removeprefix("layer "): one for one in deviations if one.what.startswith("layer ")}
            # Ids differ because a layer does; they are worth saying only where no layer does.
            rest = [one for one in deviations if one.what.removeprefix("layer ") in own or not own]
            changed = [layer for layer in layers if layer.kind in own]
            with tempfile.TemporaryDirectory(prefix="nvllm-recorded-") as scratch:
                there = list(self._there(image, {layer.kind: own[layer.kind] for layer in changed}, Path(scratch)))
                raise Refused(self._refusals(image, built.build_hash, changed, there, rest))
        return said

    def _refusals(
        self, image: str, build_hash: str, own: Sequence[Layer], there: Sequence[Layer], rest: Sequence[Deviation]
    ) -> Iterator[Refusal]:
        """Yield why DEVIATIONS are refused, and keep OWN and THERE, the built and the recorded layers."""
        shown = self.project.show(self.project.digests(image))
        kept = keep(self.places.differing / build_hash[:12], {"recorded": there, "built": own})
        recorded, made = contents.of_layers("recorded", there), contents.of_layers("built", own)
        found = list(difference.images(recorded, made, disassembly.disassembled))
        yield from difference.refusals(found, "NV308", shown, f"nvllm image diff {kept}/recorded {kept}/built")
        elsewhere = (
            f"nvllm build {image} --layout good, where it is as recorded; then nvllm image diff good {kept}/built"
        )
        known = {layer.kind for layer in there}
        recorded_layers = self._recorded(image)
        for layer in own:
            text = recorded_layers[layer.kind].sketch if layer.kind in recorded_layers else None
            if layer.kind not in known and text is not None:
                rows = sketch.rows(Blob(layer.path, 0, layer.size))
                named = list(sketch.differences(layer.kind, text, rows))
                known |= {one.layer for one in named}
                yield from difference.refusals(named, "NV308", shown, elsewhere)
        for one in rest:
            if one.what.removeprefix("layer ") not in known:
                expected, built = one.recorded or "no such layer", one.built or "no such layer"
                yield Refusal("NV308", f"{shown}: {one.what}", expected, built, elsewhere)
        for layer in own:
            LayerCache(self.places.layers).forget(layer)

    def _there(self, image: str, wanted: Mapping[str, Deviation], scratch: Path) -> Iterator[Layer]:
        """Yield the recorded layers, WANTED by name, that the layer cache or the engine has."""
        cache, saved = LayerCache(self.places.layers), None
        for name, one in wanted.items():
            if one.recorded is None:
                continue
            path = cache.holding(one.recorded)
            if path is None:
                saved = self._saved(image, cache, scratch) if saved is None else saved
                if one.recorded in saved:
                    path = scratch / f"{one.recorded.replace(':', '-')}.layer"
                    saved[one.recorded].tar().copy(path)
            if path is not None:
                yield Layer(name, one.recorded, path.stat().st_size, path)

    def _saved(self, image: str, cache: LayerCache, scratch: Path) -> Mapping[str, StoredLayer]:
        """Return the layers of the recorded image by diff_id; none if the engine does not have it."""
        recorded, engine = _of(self.project, image), self.connect()
        if recorded is None or isinstance(engine, EngineProblem):
            return {}
        for one in filter(None, (recorded.image_id, recorded.manifest)):
            if engine.image(one) is not None:
                layers = contents.of_engine(one, engine, cache, scratch).layers
                return {layer.diff_id: layer for layer in layers}
        return {}

    def _recorded(self, image: str) -> Mapping[str, LayerDigest]:
        recorded = _of(self.project, image)
        return {layer.name: layer for layer in recorded.layers} if recorded is not None else {}


def _of(project: Project, image: str) -> BuildDigests | None:
    """Return what PROJECT has recorded of IMAGE for its platform, if anything."""
    path = project.digests(image)
    found = digests.read(path, project.show(path))
    return found.platforms.get(project.platform) if found is not None else None
