"""OCI images: configuration, layers and manifest; written as an OCI layout.

An image has two ids, both the same on every host: the sha256 of its configuration, which names the layers by diff_id,
and the sha256 of its manifest. Which of them an engine uses depends on its image store. Locks, plans and records use
the configuration's. Layers are never compressed. `archive.py` makes the stream that an engine loads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import canonical, clock, durable
from nvllm.core.canonical import Json
from nvllm.layers.tarlayer import Layer

_OCI = "application/vnd.oci.image"
INDEX, MANIFEST = f"{_OCI}.index.v1+json", f"{_OCI}.manifest.v1+json"
CONFIG, LAYER = f"{_OCI}.config.v1+json", f"{_OCI}.layer.v1.tar"

DEVELOPMENT = "nvllm.development"
"""The label of an image with the files of a work tree: their digest."""

_HISTORY = "nvllm layer "
"""What precedes the kind of a layer in an image's history, where engines and registries keep it."""


def kind_in(history: str) -> str | None:
    """Return the kind of layer in HISTORY, `created_by` of an entry; None if nvllm did not write the entry."""
    return history.removeprefix(_HISTORY) if history.startswith(_HISTORY) else None


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob as an OCI document names it."""

    media_type: str
    digest: str
    size: int

    def document(self) -> dict[str, Json]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, slots=True)
class Lower:
    """A layer of a base image that only the engine holds: its DIFF_ID, and the engine's blob of it, if it is known.

    The blob is compressed by the registry, so its digest is not the DIFF_ID.
    """

    diff_id: str
    blob: Descriptor | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image: its configuration (canonical JSON), and its layers from the bottom up."""

    config: bytes
    layers: tuple[Layer, ...]
    below: tuple[Lower, ...] = ()
    """The layers under these: those of a base image that only the engine holds."""

    @property
    def id(self) -> str:
        """The digest of the configuration: the image id in locks, plans and records."""
        return sha256(self.config)

    @property
    def name(self) -> str:
        """The name of its spec, by its label."""
        return self._labels["nvllm.image"]

    @property
    def development(self) -> str:
        """The digest of what it has of a work tree, by its label; empty for an image that lock and patch set decide."""
        return self._labels.get(DEVELOPMENT, "")

    @property
    def _labels(self) -> Mapping[str, str]:
        labels: dict[str, str] = json.loads(self.config)["config"]["Labels"]
        return labels

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids that an engine may use for the image; the manifest's digest only if it is known."""
        manifest = self.manifest
        return (self.id,) if manifest is None else (self.id, sha256(manifest))

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return (*(layer.diff_id for layer in self.below), *(layer.diff_id for layer in self.layers))

    @property
    def manifest(self) -> bytes | None:
        """The OCI manifest (canonical JSON); None if the blob of a base layer is unknown."""
        known = [layer.blob for layer in self.below if layer.blob is not None]
        if len(known) < len(self.below):
            return None
        own = [Descriptor(LAYER, layer.diff_id, layer.size) for layer in self.layers]
        return canonical.encode(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": Descriptor(CONFIG, self.id, len(self.config)).document(),
                "layers": [descriptor.document() for descriptor in (*known, *own)],
            }
        )

    def index(self, manifest: bytes, annotations: Mapping[str, str]) -> bytes:
        """Return the OCI index that names MANIFEST, of this image, with ANNOTATIONS."""
        config = json.loads(self.config)
        entry: Json = {
            **Descriptor(MANIFEST, sha256(manifest), len(manifest)).document(),
            "platform": {"os": config["os"], "architecture": config["architecture"]},
            "annotations": dict(annotations),
        }
        return canonical.encode({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})


LAYOUT = canonical.encode({"imageLayoutVersion": "1.0.0"})
"""The content of the file ``oci-layout``."""

EMPTY = b"{}"
"""The configuration of an artifact, a blob that has to be there."""


def artifact(kind: str, layers: Sequence[Descriptor], subject: Descriptor | None = None) -> bytes:
    """Return the manifest of an artifact of KIND, which is no image, made of LAYERS; about SUBJECT, if there is one."""
    config = Descriptor("application/vnd.oci.empty.v1+json", sha256(EMPTY), len(EMPTY))
    return canonical.encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": kind,
            "config": config.document(),
            "layers": [layer.document() for layer in layers],
            **({} if subject is None else {"subject": subject.document()}),
        }
    )


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def blob(digest: str) -> str:
    """Return the name of the blob with DIGEST in a layout."""
    return f"blobs/{digest.replace(':', '/')}"


def assemble(
    layers: Sequence[Layer],
    *,
    platform: str,
    epoch: int,
    entrypoint: Sequence[str],
    environment: Mapping[str, str],
    labels: Mapping[str, str],
    below: Sequence[Lower] = (),
) -> Image:
    """Return the image of LAYERS on the layers BELOW. Nothing in it depends on the time, the host or the user."""
    system, _, architecture = platform.partition("/")
    created = clock.stamp(epoch)
    kinds = [*("base" for _ in below), *(layer.kind for layer in layers)]
    history = [{"created": created, "created_by": f"{_HISTORY}{kind}"} for kind in kinds]
    diff_ids = [*(layer.diff_id for layer in below), *(layer.diff_id for layer in layers)]
    config: Json = {
        "architecture": architecture,
        "os": system,
        "created": created,
        "config": {
            "Entrypoint": list(entrypoint),
            "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
            "Labels": dict(labels),
            "User": "65534:65534",  # not root, even if the image is run without nvllm
            "WorkingDir": "/",
        },
        "history": history,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    return Image(canonical.encode(config), tuple(layers), tuple(below))


def common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many diff_ids FIRST and SECOND have in common, from the bottom up."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def write_layout(image: Image, reference: str, directory: Path) -> str:
    """Write IMAGE, all of whose layers are here, as an OCI layout at DIRECTORY, and return the manifest's digest.

    Layers are hard links into the layer cache where the file system allows, else copies. Raises Refused as
    `durable.appearing` does.
    """
    manifest = image.manifest
    assert manifest is not None
    with durable.appearing(directory, "--layout") as partial:
        blobs = _link_layers(image.layers, partial)
        for data in (image.config, manifest):
            (blobs / sha256(data).removeprefix("sha256:")).write_bytes(data)
        (partial / "oci-layout").write_bytes(LAYOUT)
        (partial / "index.json").write_bytes(image.index(manifest, {"org.opencontainers.image.ref.name": reference}))
    return sha256(manifest)


def write_layers(layers: Sequence[Layer], about: Json, directory: Path) -> None:
    """Write LAYERS to DIRECTORY, by digest as in an OCI layout, and ABOUT as ``layers.json``.

    Raises Refused as `durable.appearing` does.
    """
    with durable.appearing(directory, "--layout") as partial:
        _link_layers(layers, partial)
        (partial / "layers.json").write_text(canonical.pretty(about))


def _link_layers(layers: Sequence[Layer], directory: Path) -> Path:
    """Link LAYERS by digest into ``blobs/sha256`` of DIRECTORY, equal ones once, and return that directory."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for digest, layer in {layer.diff_id.removeprefix("sha256:"): layer for layer in layers}.items():
        durable.link(layer.path, blobs / digest)
    return blobs
