"""The store of blessed caches: immutable trees, each under its tree hash.

::

    <root>/<64 hex>/        a whole, verified tree in which nothing may be written
    <root>/partial-*/       an unfinished `adopt`; never trusted, removed by `nvllm gc`

A tree gets its name by one rename, after every byte of it was hashed and synced to the disk. So a directory named by 64
hex digits always had that tree hash, also if a process was killed. Later changes are found by `verify`, and by the
staging before every serve.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from nvllm.cache import cachetree, staging
from nvllm.cache.cachetree import Tree
from nvllm.core import durable
from nvllm.core.durable import sync_directory, writing
from nvllm.core.paths import ensure

_HASH = re.compile(r"[0-9a-f]{64}")
_PARTIAL = "partial-"


def _unpinned(name: str) -> None:
    """Keep nothing: for a tree that a manifest names already, or that nothing needs."""


@dataclass(frozen=True, slots=True)
class TreeStore:
    """The store below ROOT, which is created with the first tree."""

    root: Path

    def path(self, tree_hash: str) -> Path:
        """Return the directory of the tree with TREE_HASH. Raises ValueError if that is not 64 hex digits."""
        if not _HASH.fullmatch(tree_hash):
            raise ValueError(f"not a tree hash: {tree_hash!r}")
        return self.root / tree_hash

    def has(self, tree_hash: str) -> bool:
        return self.path(tree_hash).is_dir()

    def adopt(
        self,
        source: Path,
        cure: str,
        *,
        owner: int | None = None,
        written: Set[str] = cachetree.WRITTEN,
        keep: Callable[[str], None] = _unpinned,
    ) -> Tree:
        """Copy the new cache at SOURCE into the store, and return its sealed tree. SOURCE is not changed.

        All of SOURCE must belong to OWNER (a uid; None: this user), because a container may run as another user.
        WRITTEN are the names of the directories that an engine writes into when it loads the cache. Empty lock files
        are left out. KEEP, that of a pin, is told each name before it is in the store. Raises Refused with NV907 and
        CURE if SOURCE is not fit to be loaded, or if the store has a damaged tree of the same hash, and NV911 if the
        store cannot be written.
        """
        with writing(self.root):
            partial = Path(tempfile.mkdtemp(dir=ensure(self.root), prefix=_PARTIAL))
        try:
            keep(partial.name)  # before it fills: `gc` removes a `partial-` that nobody keeps
            tree = staging.copy(source, partial, cure, owner=owner, written=written)
            durable.reached("copied")
            keep(tree.hash)
            self._enter(partial, tree)
        except BaseException:
            staging.discard(partial)
            raise
        return tree

    def _enter(self, partial: Path, tree: Tree) -> None:
        """Give the tree at PARTIAL its name, unless another process has just added the same tree."""
        target = self.path(tree.hash)
        with writing(target):
            try:
                os.rename(partial, target)
            except OSError as error:
                # A directory replaces an empty one alone (rename(2)): the name is another process's then.
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
            else:
                durable.reached("renamed")
                sync_directory(self.root)
                return
        damaged = str(target)
        self.verify(tree, f"chmod -R u+w {shlex.quote(damaged)} && rm -r {shlex.quote(damaged)}")
        staging.discard(partial)

    def verify(self, tree: Tree, cure: str) -> None:
        """Hash the stored TREE. Raises Refused with NV907 and CURE for every difference."""
        staging.verify(self.path(tree.hash), tree, cure)

    def stage(self, tree: Tree, parent: Path, cure: str) -> staging.Staged:
        """Copy the stored TREE into a new directory in PARENT, to be mounted: see `staging.stage`."""
        return staging.stage(self.path(tree.hash), tree, parent, cure)

    def remove(self, tree_hash: str) -> int:
        """Remove the tree of TREE_HASH, if it is in the store, and return the number of bytes that this freed.

        Its name is removed first, so that a killed process leaves no part of a tree under a trusted name.
        """
        tree_path = self.path(tree_hash)
        if not tree_path.is_dir():
            return 0
        with writing(tree_path):
            removed = Path(tempfile.mkdtemp(dir=self.root, prefix=_PARTIAL))
            try:
                os.rename(tree_path, removed)
            except OSError as error:
                os.rmdir(removed)
                if isinstance(error, FileNotFoundError):  # another process has just removed it
                    return 0
                raise
            sync_directory(self.root)  # or a power cut could bring back the name of a tree that is removed in part
        durable.reached("unnamed")
        size = sum(path.lstat().st_size for path in removed.rglob("*") if not path.is_dir())
        staging.discard(removed)
        return size

    def list(self) -> list[str]:
        """Return the hashes of the stored trees, sorted."""
        return sorted(path.name for path in self.root.glob("*") if _HASH.fullmatch(path.name))
