"""The image of a development tree: that of a build, with one layer over its patch set. It is for looking, no build.

Its digest is a factor of the build hash, which no command but `nvllm dev` can ask for: a spec, a lock and a series name
none. So no blessing, record or registry of a build fits it. `refusals` says it once more to what blesses and pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nvllm.core.canonical import Json
from nvllm.core.lock import LockedFile
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder, LayerBuilder
from nvllm.image.identity import Build
from nvllm.layers import patchlayer
from nvllm.layers.patchlayer import Patched
from nvllm.layers.tarlayer import Layer


class DevelopmentBuilder(ImageBuilder):
    """Builds images with the files of CHANGED over those of the patch set."""

    def __init__(
        self, project: Project, places: Places, progress: Progress, changed: Patched, *, offline: bool
    ) -> None:
        super().__init__(project, places, progress, offline=offline)
        self.changed = changed

    def builder(self, build: Build, files: Sequence[LockedFile]) -> LayerBuilder:
        below = super().builder(build, files)
        return _DevelopmentLayers(below, self.changed)


class _DevelopmentLayers(LayerBuilder):
    """The layers of BELOW, and one with the files of CHANGED."""

    def __init__(self, below: LayerBuilder, changed: Patched) -> None:
        super().__init__(below.build, below.diffs, below.store, below.cache, below.progress)
        self.changed = changed

    def needed(self) -> list[LockedFile]:
        return [*super().needed(), *self.build.lock.base_files]  # the files of a work tree get bytecode, too

    def upper(self) -> list[Layer]:
        return [*super().upper(), self._over()]

    def _over(self) -> Layer:
        about: dict[str, Json] = {"development": self.build.development, "site": self.build.scheme.site}
        factors = self._factors({**about, "interpreter": identity.interpreter_factors(self.build.lock)})

        def make(path: Path) -> Layer:
            entries = patchlayer.entries(self.changed, self.changed.files, self.build.scheme, self.interpreter)
            return self._write("development", list(entries), path)

        return self.cache.layer("development", factors, make)


def refusals(development: str, where: str) -> list[Refusal]:
    """Return NV612 for WHERE if DEVELOPMENT, the digest that a build or an image has of a work tree, is not empty."""
    if not development:
        return []
    cure = "write the change into the series, and build it: nvllm dev finish DIR"
    return [Refusal("NV612", where, "an image that its lock and its patch set decide", f"dev {development[:12]}", cure)]
