"""Reports of kernels that blessed caches lacked, kept by serve hash until a bless has added them.

::

    <state>/kernels/<serve hash>.json    one object for each kernel, sorted by key; replaced whole
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

import cattrs

from nvllm.cache.cachetree import Tree
from nvllm.core import canonical, durable, reading
from nvllm.serve.timeline import MissingKernel

_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


@dataclass(frozen=True, slots=True)
class KernelReports:
    """The reports below ROOT, which is created with the first one."""

    root: Path

    def read(self, serve_hash: str) -> tuple[MissingKernel, ...]:
        """Return the kernels that were missing under SERVE_HASH; none for a file that this version cannot read."""
        try:
            document = canonical.decode(reading.content(self._path(serve_hash), reading.STATE))
            return tuple(_CONVERTER.structure(document, list[MissingKernel]))
        except (OSError, ValueError, RecursionError, TypeError, cattrs.BaseValidationError):
            return ()

    def add(self, serve_hash: str, kernels: Iterable[MissingKernel]) -> None:
        """Add KERNELS to the report of SERVE_HASH. Raises Refused NV920 if it cannot be written."""
        known = {kernel.key: kernel for kernel in (*self.read(serve_hash), *kernels)}
        document = [asdict(kernel) for _, kernel in sorted(known.items())]
        durable.keep(self._path(serve_hash), canonical.pretty(document).encode())

    def settle(self, serve_hash: str, tree: Tree) -> tuple[MissingKernel, ...]:
        """Forget the kernels of SERVE_HASH that TREE has; return the ones that it lacks, whose report is kept."""
        reported = self.read(serve_hash)
        paths = [PurePosixPath(file.path) for file in tree.files]
        keys = {path.parent.name for path in paths} | {path.stem for path in paths if path.suffix == ".py"}
        left = tuple(kernel for kernel in reported if kernel.key not in keys)
        self.clear(serve_hash)
        if left:
            self.add(serve_hash, left)
        return left

    def clear(self, serve_hash: str) -> None:
        """Forget what was missing under SERVE_HASH."""
        self._path(serve_hash).unlink(missing_ok=True)

    def _path(self, serve_hash: str) -> Path:
        return self.root / f"{serve_hash}.json"
