"""The cache of layers, by the hash of their inputs.

A key is a hash over everything that decides a layer's bytes, so a cached layer is never compared with its inputs. A
layer is two files: the tar, and a JSON file with its digest, which is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvllm.core import canonical, paths, reading
from nvllm.core.canonical import Json
from nvllm.layers.tarlayer import Layer
from nvllm.sources import store

DOMAIN = "nvllm.layer/1"


class LayerCache:
    """The layer cache below DIRECTORY."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def layer(self, kind: str, factors: Mapping[str, Json], make: Callable[[Path], Layer]) -> Layer:
        """Return the layer KIND for FACTORS: the cached one, or the one that MAKE writes at the path it is given.

        Of two processes that want the same layer, the second waits for the first.
        """
        key = self.key(kind, factors)
        path, note = self.directory / f"{key}.tar", self.directory / f"{key}.json"
        with self.locked(key):
            known = _known(kind, path, note)
            if known is not None:
                return known
            note.unlink(missing_ok=True)  # first: with the old note, a tar of that size that a kill left would count
            made = make(path)
            text: Json = {"kind": kind, "diff_id": made.diff_id, "size": made.size, "factors": factors}
            # Last: a tar without a note, or of another size than in it, is made again.
            partial = note.with_suffix(".partial")
            partial.write_bytes(canonical.encode(text))
            partial.replace(note)
            return made

    def made(self, kind: str, factors: Mapping[str, Json]) -> Layer | None:
        """Return the layer KIND for FACTORS, None if it is not made yet."""
        path = self.directory / f"{self.key(kind, factors)}.tar"
        return _known(kind, path, path.with_suffix(".json"))

    def holding(self, diff_id: str) -> Path | None:
        """Return the path of a layer that is in the cache as DIFF_ID and really has that sha256, or None."""
        for note in sorted(self.directory.glob("*.json")):
            known = _known("", note.with_suffix(".tar"), note)
            if known is None or known.diff_id != diff_id:
                continue
            if "sha256:" + canonical.sha256_file(known.path) == diff_id:
                return known.path
        return None

    def forget(self, layer: Layer) -> None:
        """Remove LAYER from the cache, so that it is made again."""
        layer.path.with_suffix(".json").unlink(missing_ok=True)  # the note first, as it is written last
        layer.path.unlink(missing_ok=True)

    def tree(self, factors: Mapping[str, Json]) -> Path:
        """Return the path of the unpacked base tree for FACTORS, which may not exist yet."""
        return self.directory / f"{self.key('tree', factors)}.tree"

    def unpacked(self, factors: Mapping[str, Json], make: Callable[[Path], None]) -> Path:
        """Return the unpacked base tree for FACTORS: the cached one, or what MAKE writes at the path it is given.

        Of two processes that want the same tree, the second waits for the first. MAKE must write the tree atomically.
        """
        path = self.tree(factors)
        with self.locked(path.stem):
            if not path.is_dir():
                make(path)
        return path

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Hold the lock of what the cache has under KEY, after waiting for its holder."""
        paths.ensure(self.directory)
        with store.hard_lock(self.directory / f"{key}.lock", self.directory):
            yield

    def key(self, kind: str, factors: Mapping[str, Json]) -> str:
        """Return the key of the layer KIND for FACTORS."""
        return canonical.digest(DOMAIN, {"kind": kind, "factors": factors})

    @property
    def bytecode(self) -> Path:
        """The directory of the bytecode archives, by key."""
        return self.directory / "bytecode"


def _known(kind: str, path: Path, note: Path) -> Layer | None:
    """Return the layer at PATH that NOTE describes, or None if it has to be made."""
    try:
        known: Any = canonical.decode(reading.content(note, reading.STATE))
        if path.stat().st_size == known["size"]:
            return Layer(kind, known["diff_id"], known["size"], path)
    except (FileNotFoundError, ValueError):  # a ValueError: the host lost power before the note reached the disk
        return None
    return None
