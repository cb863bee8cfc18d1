"""A foreign image: a build's own image and one layer more, whose `.pth` runs at every start of Python.

Everything that an image says of itself is forged: labels, identity file, history, user and entrypoint are the build's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from nvllm.core import canonical
from nvllm.core.paths import Places
from nvllm.core.progress import Progress, Silent
from nvllm.host.facts import ImageFacts
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record, RecordedLayer
from nvllm.image.identity import IDENTITY_PATH, Build
from nvllm.layers import tarlayer
from nvllm.layers.oci import Image

PTH = "opt/venv/lib/python3.11/site-packages/zz_foreign.pth"


def of(image: Image, path: Path, kind: str = "more") -> Image:
    """Return the foreign image that says that it is IMAGE; its layer is written to PATH, and called KIND."""
    more = tarlayer.write(kind, [tarlayer.blob(PTH, b"import os\n")], epoch=0, path=path, progress=Silent())
    config = json.loads(image.config)
    config["rootfs"]["diff_ids"].append(more.diff_id)
    config["history"].append({**config["history"][-1], "created_by": f"nvllm layer {kind}"})
    return Image(canonical.encode(config), (*image.layers, more), image.below)


def recorded_by_an_older_nvllm(foreign: Image, build: Build, places: Places) -> Record:
    """Record in PLACES that FOREIGN is BUILD, as nvllm once did for every image that it pulled by digest."""
    layers = tuple(RecordedLayer(one.kind, one.diff_id, one.size) for one in foreign.layers)
    written = Record(build.spec.name, build.build_hash, foreign.id, layers, foreign.ids[1])
    buildrecord.write(places.builds, written)
    return written


@dataclass
class PlayedStore:
    """The images of a played engine, by id, and what each tag names. IDENTITY is in every image's identity file."""

    identity: str = ""
    images: dict[str, Image] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def put(self, image: Image, *tags: str) -> None:
        self.images[image.id] = image
        self.tags.update(dict.fromkeys(tags, image.id))

    def image(self, reference: str) -> ImageFacts | None:
        image = self.images.get(self.tags.get(reference, reference))
        if image is None:
            return None
        tags = tuple(tag for tag, named in self.tags.items() if named == image.id)
        return ImageFacts(image.id, image.diff_ids, tags, 1)

    def load(self, image: Image, tags: tuple[str, ...], _progress: Progress) -> None:
        self.put(image, *tags)

    def tag(self, image_id: str, tag: str) -> None:
        self.tags[tag] = image_id

    def read_file(self, image_id: str, path: str) -> bytes | None:
        assert image_id in self.images
        return canonical.encode({"build_hash": self.identity}) if path == f"/{IDENTITY_PATH}" else None
