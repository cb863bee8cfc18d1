"""An engine that loads images and runs nothing, for tests of what a worker does around a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nvllm.core.progress import Progress
from nvllm.host.facts import ContainerFact, EngineFacts, ImageFacts
from nvllm.layers.oci import Image


@dataclass
class PlayedEngine:
    """An engine that keeps what is loaded. RUNNING are its containers, LABELS what it gives new ones."""

    loaded: dict[str, Image] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    running: list[ContainerFact] = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)

    def facts(self) -> EngineFacts:
        return EngineFacts("20.10", "1.41", "overlay2", rootless=False, bridge_interface=None)

    def labelling(self, labels: Mapping[str, str]) -> PlayedEngine:
        self.labels = labels
        return self

    def containers(self) -> tuple[ContainerFact, ...]:
        return tuple(self.running)

    def images(self) -> tuple[ImageFacts, ...]:
        return tuple(ImageFacts(name, (), ("nvllm:demo-1",), 1) for name in self.loaded)

    def image(self, reference: str) -> ImageFacts | None:
        image = self.loaded.get(reference)
        return None if image is None else ImageFacts(image.id, image.diff_ids, (), 1)

    def load(self, image: Image, tags: Sequence[str], _progress: Progress) -> None:
        self.loaded[image.id] = image
        self.tags += tags

    def tag(self, image: str, tag: str) -> None:
        """A tag changes nothing here."""

    def kill(self, container: str) -> None:
        """`remove` follows."""

    def remove(self, container: str) -> None:
        self.running = [one for one in self.running if one.id != container]
