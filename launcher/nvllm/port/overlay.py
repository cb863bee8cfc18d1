"""What a development tree changes of an image: files of vLLM's package that are laid over those of the image."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse_any
from nvllm.patches import seriesfile
from nvllm.patches.source import SourceTree

DOMAIN = "nvllm.dev-difference/1"
_PACKAGE = "vllm/"
_NATIVE = (".so", ".cu", ".cuh", ".cpp", ".h", ".hpp")


@dataclass(frozen=True, slots=True)
class TreeDifference:
    """The PATHS of vLLM's package that a tree has otherwise than an image, and the DIGEST of what it has there."""

    paths: tuple[str, ...]
    digest: str


def difference(paths: Collection[str], tree: SourceTree, image: SourceTree, where: str) -> TreeDifference:
    """Return in which of PATHS the files of TREE differ from those of IMAGE; messages call the tree WHERE.

    Files outside of the package are in no image. Raises Refused NV610 for what cannot be laid over one: a file that the
    tree lacks, and one that is compiled into the wheel.
    """
    content = {path: tree.read(path) for path in sorted(paths) if tree.read(path) != image.read(path)}
    refuse_any(_unfit(content, where))
    own = {path: data for path, data in content.items() if path.startswith(_PACKAGE)}
    hashes: dict[str, Json] = {path: hashlib.sha256(data or b"").hexdigest() for path, data in own.items()}
    return TreeDifference(tuple(own), canonical.digest(DOMAIN, hashes))


def _unfit(content: Mapping[str, bytes | None], where: str) -> Iterator[Refusal]:
    expected = "files that can be laid over those of the image"
    for path, data in content.items():
        native = path.startswith(seriesfile.NATIVE) or path in seriesfile.BUILD_FILES
        if native or (path.startswith(_PACKAGE) and path.endswith(_NATIVE)):
            cure = "compile vLLM with it, by the native path of the Dockerfile"
            yield Refusal("NV610", f"{where}/{path}", expected, "a file that is compiled into the wheel", cure)
        elif data is None and path.startswith(_PACKAGE):
            cure = "leave the file there, empty, while you try"
            yield Refusal("NV610", f"{where}/{path}", expected, "a file that is gone from the tree", cure)
