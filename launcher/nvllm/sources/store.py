"""The content store: every locked file once, under its sha256, verified before it gets that name.

::

    <root>/sha256/ab/<64 hex>    complete, verified, read-only files
    <root>/partial/<64 hex>      unfinished downloads; resumed or discarded, never trusted
    <root>/locks/<64 hex>        one hard lock per file, so that two processes do not download the same bytes

A file enters ``sha256/`` by one rename, after its bytes were hashed and synced to the disk. So a file in ``sha256/``
has the bytes of its name, even if a process is killed at any instant.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from nvllm.core import durable
from nvllm.core.canonical import sha256_file
from nvllm.core.paths import ensure
from nvllm.core.refusal import refuse

_SHA256 = re.compile(r"[0-9a-f]{64}")

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK})
"""The errors of file systems without flock, such as some network and FUSE file systems."""


@contextmanager
def hard_lock(path: Path, directory: Path, give_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock of the file PATH, after waiting for its holder. The kernel frees it when the process ends.

    Messages name DIRECTORY. GIVE_UP is called while waiting; if it returns true, filelock.Timeout is raised. Raises
    Refused NV513 on a file system without hard locks: a soft lock would outlive a killed process.
    """
    lock = FileLock(path, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire(cancel_check=give_up)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        cure = "set NVLLM_HOME to a directory on a local disk"
        raise refuse("NV513", str(directory), "hard file locks (flock)", str(error.strerror), cure) from error
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class Store:
    """The store below ROOT, which is created with the first file."""

    root: Path

    def path(self, sha: str) -> Path:
        """Return the path of the file with SHA, which may not exist. Raises ValueError if SHA is not 64 hex."""
        if not _SHA256.fullmatch(sha):
            raise ValueError(f"not a sha256: {sha!r}")
        return self.root / "sha256" / sha[:2] / sha

    def partial(self, sha: str) -> Path:
        """Return the path for the unfinished download of SHA, and create its directory."""
        self.path(sha)
        ensure(self.root / "partial")
        return self.root / "partial" / sha

    def has(self, sha: str) -> bool:
        """Return whether the store has SHA. Its bytes were verified when it was added; `verify` reads them again."""
        return self.path(sha).is_file()

    def list(self) -> list[str]:
        """Return the sha256 of every file in the store, sorted."""
        return sorted(path.name for path in (self.root / "sha256").glob("??/*") if _SHA256.fullmatch(path.name))

    @contextmanager
    def locked(self, sha: str, give_up: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Hold the lock of SHA, as `hard_lock` does."""
        self.path(sha)
        with hard_lock(ensure(self.root / "locks") / sha, self.root, give_up):
            yield

    def adopt(self, path: Path, sha: str) -> Path:
        """Move the file at PATH into the store as SHA and return its path there.

        PATH must be on the store's file system. Raises Refused NV205, and removes PATH, if it has another sha256:
        a resumed download would only fail again.
        """
        target = self.path(sha)
        actual = sha256_file(path)
        durable.reached("hashed")
        if actual != sha:
            path.unlink()
            cure = "fetch again; if it fails again, the index serves another file under this name"
            raise refuse("NV205", str(path), f"sha256 {sha}", f"sha256 {actual}", cure)
        os.chmod(path, 0o444)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        durable.reached("synced")
        ensure(target.parent)
        os.replace(path, target)
        durable.reached("renamed")
        durable.sync_directory(target.parent)  # or a power cut takes back a name that somebody already relies on
        return target

    def verify(self, sha: str, cure: str = "run the command again, which fetches the file") -> None:
        """Read the file of SHA again. Raises Refused NV204 if it is missing, NV205 with CURE if its bytes changed.

        A damaged file is removed, so that it is fetched again.
        """
        path = self.path(sha)
        with self.locked(sha):  # so that nobody fetches it while it is judged
            if not path.is_file():
                raise refuse("NV204", str(path), f"sha256 {sha}", "no file", "run without --offline: it is fetched")
            actual = sha256_file(path)
            if actual == sha:
                return
            path.unlink()
        raise refuse("NV205", str(path), f"sha256 {sha}", f"sha256 {actual}; the damaged file was removed", cure)

    def remove(self, sha: str) -> int:
        """Remove the file of SHA, if it exists, and return the number of bytes freed."""
        path = self.path(sha)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size
