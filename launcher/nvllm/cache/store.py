"""The store of blessed caches: immutable trees, each under its tree hash.

::

    <root>/<64 hex>/        a whole, verified tree in which nothing may be written
    <root>/partial-*/       what an `adopt` has so far; never trusted, thrown away

A tree gets its name by one rename, after every byte of it was hashed and has reached the disk. So whatever
instant a process is killed at, a name of 64 hex stands for the tree that it says; what happens to a tree later
is found by `verify`, and by the staging that precedes every serve.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nvllm.cache import staging
from nvllm.cache import tree as cachetree
from nvllm.cache.tree import Rule, Tree
from nvllm.core import durable
from nvllm.core.durable import sync_directory, writing
from nvllm.core.paths import ensure

_HASH = re.compile(r"[0-9a-f]{64}")
_PARTIAL = "partial-"


@dataclass(frozen=True, slots=True)
class TreeStore:
    """The store below ROOT, which is created when the first tree comes."""

    root: Path

    def path(self, tree_hash: str) -> Path:
        """Return where the tree with TREE_HASH lies, or would lie. Raises ValueError for what is not 64 hex."""
        if not _HASH.fullmatch(tree_hash):
            raise ValueError(f"not a tree hash: {tree_hash!r}")
        return self.root / tree_hash

    def has(self, tree_hash: str) -> bool:
        return self.path(tree_hash).is_dir()

    def leftovers(self) -> list[Path]:
        """Return what killed processes left behind, and what running ones are at: the age tells them apart."""
        return sorted(self.root.glob(f"{_PARTIAL}*"))

    def adopt(
        self, source: Path, cure: str, *, owner: int | None = None, left_out: Rule = cachetree.lock_files
    ) -> Tree:
        """Copy the fresh cache at SOURCE into the store and return its sealed tree; SOURCE stays as it is.

        All of SOURCE belongs to OWNER (None: us), for a container may have run as another user. Files that
        LEFT_OUT names do not enter. Raises Refused with NV907 and CURE if SOURCE is no fit cache, or if the
        store holds a damaged tree under the same hash, and NV911 if the store cannot be written.
        """
        with writing(self.root):
            partial = Path(tempfile.mkdtemp(dir=ensure(self.root), prefix=_PARTIAL))
        try:
            tree = staging.copy(source, partial, cure, owner=owner, left_out=left_out)
            durable.reached("copied")
            self._enter(partial, tree)
        except BaseException:
            staging.discard(partial)
            raise
        return tree

    def _enter(self, partial: Path, tree: Tree) -> None:
        """Give the tree at PARTIAL its name, unless somebody else has just brought the same."""
        place = self.path(tree.hash)
        with writing(place):
            try:
                os.rename(partial, place)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
            else:
                durable.reached("renamed")
                sync_directory(self.root)
                return
        self.verify(tree, f"rm -rf {place}, then run the command again")
        staging.discard(partial)

    def verify(self, tree: Tree, cure: str) -> None:
        """Read the stored TREE. Raises Refused with NV907 and CURE for every way in which it is another now."""
        staging.verify(self.path(tree.hash), tree, cure)

    def stage(self, tree: Tree, parent: Path, cure: str) -> staging.Staged:
        """Copy the stored TREE into a fresh directory in PARENT, from where it is served: see `staging.stage`."""
        return staging.stage(self.path(tree.hash), tree, parent, cure)

    def remove(self, tree_hash: str) -> int:
        """Remove the tree of TREE_HASH, if it is here, and return the bytes that this freed.

        Its name goes first: a removal that is killed leaves no half of a tree under a name that is trusted.
        """
        place = self.path(tree_hash)
        if not place.is_dir():
            return 0
        with writing(place):
            grave = Path(tempfile.mkdtemp(dir=self.root, prefix=_PARTIAL))
            try:
                os.rename(place, grave)
            except OSError as error:
                os.rmdir(grave)
                if isinstance(error, FileNotFoundError):  # somebody else has just removed it
                    return 0
                raise
            sync_directory(self.root)  # or a power cut could bring the name back, of a tree that is half removed
        durable.reached("unnamed")
        size = sum(path.lstat().st_size for path in grave.rglob("*") if not path.is_dir())
        staging.discard(grave)
        return size

    def list(self) -> list[str]:
        """Return the hashes of the trees that are here, sorted."""
        return sorted(path.name for path in self.root.glob("*") if _HASH.fullmatch(path.name))
