"""Staging: a private copy of a cache, hashed while it is copied, which is what gets mounted.

If a directory is hashed and then mounted, it can be changed in between. So each file is opened once, without following
links, and every byte that is hashed is written into the copy. The copy lies in a new directory that only its owner can
enter, has only the expected files, and is made read-only. Later changes of the source do not matter.

Where the file system has fs-verity, the kernel guards the copy: it refuses every write to a file, and fails every read
of bytes that are not the enabled ones. ext4 without the feature, tmpfs and most others do not have it, and a file
system says so only when it is asked for a real file. So it is tried for each copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shlex
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nvllm.cache import cachetree
from nvllm.cache.cachetree import Consumer, Tree, Unfit
from nvllm.core import durable
from nvllm.core.durable import writing
from nvllm.core.paths import ensure
from nvllm.core.refusal import Refusal, Refused, refuse_any

Level = Literal["staged", "fs-verity"]
"""What protects the copy: its owner and modes, or the kernel (fs-verity) for every byte of every file."""

_CHUNK = 128 * 2**10
"""Bytes that are hashed and written at once, so few that they stay in the processor's cache."""

# Of linux/fsverity.h, the same on every architecture that Linux gives this layout of request numbers.
_ENABLE = 0x40806685
_VERSION, _SHA256, _BLOCK = 1, 1, 4096
_ARGUMENT = struct.pack("=IIIIQIIQ11Q", _VERSION, _SHA256, _BLOCK, 0, 0, 0, 0, 0, *[0] * 11)

_ABSENT = frozenset(
    {errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES}
)
"""The errors where the file system, the kernel or a container's filter does not have or allow fs-verity."""

Admit = Callable[[str, os.stat_result], None]
"""Judges a file before it is copied, by path and status; raises Unfit for one that is not to be copied."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A verified copy: PATH is what to mount, LEVEL its protection."""

    path: Path
    level: Level
    marks: tuple[tuple[str, tuple[int, ...]], ...]
    """Path and status of everything in it, for `recheck`."""


def stage(source: Path, expected: Tree, parent: Path, cure: str) -> Staged:
    """Copy the cache at SOURCE, which must be exactly EXPECTED, into a fresh directory in PARENT.

    PARENT is created if needed. The copy is not synced to the disk, because only one start uses it. Raises Refused with
    NV907 and CURE for every deviation, and NV911 if the copy cannot be written; nothing is left then. `discard`
    removes the copy when the engine has ended.
    """
    with writing(parent):
        private = Path(tempfile.mkdtemp(dir=ensure(parent), prefix="cache-"))
    try:
        target = private / "tree"
        copier = Copier(target, _admits(expected))
        _exact(source, expected, cure, copier.copy)
        durable.reached("staged copied")
        copier.seal(expected)
        return Staged(target, copier.level, _marks(target))
    except Refused as refused:
        raise Refused([*refused.refusals, *_discarded(private)]) from refused
    except BaseException:
        _discarded(private)
        raise


def verify(source: Path, expected: Tree, cure: str) -> None:
    """Hash the cache at SOURCE. Raises Refused with NV907 and CURE for every difference from EXPECTED."""
    _exact(source, expected, cure, cachetree.digest)


def _admits(expected: Tree) -> Admit:
    """Return a check that admits only files of EXPECTED, by path and size: a huge file must not fill the disk."""
    sizes = {file.path: file.size for file in expected.files}

    def admit(path: str, info: os.stat_result) -> None:
        if path not in sizes:
            raise Unfit("an extra file", "no such file")
        if info.st_size != sizes[path]:
            raise Unfit(f"{info.st_size} bytes", f"{sizes[path]} bytes")

    return admit


def _exact(source: Path, expected: Tree, cure: str, consume: Consumer) -> None:
    """Read SOURCE by CONSUME. Raises Refused for every difference from EXPECTED; for each file, the first one."""
    actual, refusals = cachetree.walk(source, cure, consume)
    if not actual.directories:  # there is no such directory, so one refusal stands for all of its files
        refuse_any(refusals)
    refused = {refusal.where for refusal in refusals}
    wrong = cachetree.differences(expected, actual, source, cure)
    refuse_any([*refusals, *(refusal for refusal in wrong if refusal.where not in refused)])


def copy(source: Path, target: Path, cure: str, *, owner: int | None, written: Set[str] = cachetree.WRITTEN) -> Tree:
    """Copy the new cache at SOURCE without its lock files to TARGET, and return the sealed tree at TARGET.

    All of SOURCE must belong to OWNER (a uid; None: this user). WRITTEN are the names of the directories that an engine
    writes into when it loads the cache. The copy is synced to the disk. Raises Refused
    NV907 for what `tree.walk` refuses, and NV911 if the copy cannot be written; then a part of it may be left.
    """
    copier = Copier(target, lambda _path, _info: None, durable=os.fsync)
    original, refusals = cachetree.walk(source, cure, copier.copy, owner=owner, left_out=cachetree.lock_files)
    refuse_any(refusals)
    durable.reached("staged copied")
    tree = original.sealed(written)
    copier.seal(tree)
    return tree


def recheck(staged: Staged, cure: str) -> list[Refusal]:
    """Return NV907 with CURE for everything in STAGED that was changed since it was made. No file is read.

    Every change of a file moves its change time (ctime), which no user can set back.
    """
    before, now = dict(staged.marks), dict(_marks(staged.path))
    return [
        Refusal(
            "NV907",
            str(staged.path / path),
            "unchanged since it was staged" if path in before else "no such file",
            "it was removed" if path not in now else "changed" if path in before else "an extra file",
            cure,
        )
        for path in sorted(before.keys() | now.keys())
        if before.get(path) != now.get(path)
    ]


@contextlib.contextmanager
def discarding(directory: Path) -> Iterator[None]:
    """Remove DIRECTORY, a read-only copy, when the context ends.

    Raises Refused NV911 if it cannot be removed, as when somebody tampered with it, beside the refusals that ended the
    context: those say what happened. Any other error that ended the context stays as it is.
    """
    try:
        yield
    except Refused as refused:
        raise Refused([*refused.refusals, *_discarded(directory)]) from refused
    except BaseException:
        _discarded(directory)
        raise
    refuse_any(_discarded(directory))


def _discarded(directory: Path) -> list[Refusal]:
    try:
        discard(directory)
    except OSError as error:
        cure = shlex.join(["sudo", "rm", "-r", str(directory)])
        leftover = f"a copy that is left over: {error.strerror or error}"
        return [Refusal("NV911", str(directory), "a copy that can be removed", leftover, cure)]
    return []


def discard(directory: Path) -> None:
    """Remove DIRECTORY, a read-only copy, or the link or file in its place, if it exists."""
    if directory.is_symlink() or directory.is_file():  # never what a link leads to
        directory.unlink()
    if not directory.is_dir():
        return
    for root, below, _ in os.walk(directory):
        os.chmod(root, 0o700)  # nothing can be removed from a directory that its owner may not write
        below[:] = [name for name in below if not os.path.islink(os.path.join(root, name))]
    shutil.rmtree(directory)


@dataclass(slots=True)
class Copier:
    """Makes the copy at TARGET, of the files that ADMIT admits; calls DURABLE with each finished descriptor."""

    target: Path
    admit: Admit
    durable: Callable[[int], None] | None = None
    level: Level = "staged"
    _buffer: bytearray = field(default_factory=lambda: bytearray(_CHUNK))
    _verity: bool | None = None

    def copy(self, path: str, descriptor: int, info: os.stat_result) -> str:
        """Copy the file PATH from DESCRIPTOR and return the sha256 of what was copied: a `tree.Consumer`."""
        self.admit(path, info)
        output_path = self.target / path
        with writing(output_path):
            os.makedirs(output_path.parent, mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            output = os.open(output_path, flags, 0o600)
        try:
            return self._copy_bytes(output_path, descriptor, output, info.st_size)
        finally:
            os.close(output)

    def _copy_bytes(self, path: Path, descriptor: int, output: int, size: int) -> str:
        view, sha256, left = memoryview(self._buffer), hashlib.sha256(), size
        while count := os.readv(descriptor, [self._buffer]):  # into one buffer: a read would make a new one each time
            left -= count
            if left < 0:
                raise Unfit("a file that grew while nvllm read it", f"{size} bytes")
            sha256.update(view[:count])
            with writing(path):
                written = 0
                while written < count:
                    written += os.write(output, view[written:count])
        return sha256.hexdigest()

    def seal(self, tree: Tree) -> None:
        """Give the copy the directories and modes of TREE, and enable fs-verity for each file if possible."""
        with writing(self.target):
            for directory in tree.directories:
                os.makedirs(self.target / directory.path, mode=0o700, exist_ok=True)
            for file in tree.files:
                self._seal_file(file.path, int(file.mode, 8))
            for directory in reversed(tree.directories):  # a directory's own path sorts before those below it
                self._close(self.target / directory.path, os.O_DIRECTORY, int(directory.mode, 8))
        self.level = "fs-verity" if self._verity else "staged"

    def _seal_file(self, path: str, mode: int) -> None:
        sealed_path = self.target / path
        # Before the mode: the kernel needs a file that its owner may still write. One file without fs-verity is a copy
        # without it.
        if self._verity is not False:
            self._verity = enable_verity(sealed_path)
        self._close(sealed_path, os.O_NONBLOCK, mode)

    def _close(self, path: Path, flags: int, mode: int) -> None:
        """Give the file or directory PATH its final MODE."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
        try:
            os.fchmod(descriptor, mode)
            if self.durable is not None:
                self.durable(descriptor)
        finally:
            os.close(descriptor)


def enable_verity(path: Path) -> bool:
    """Enable fs-verity for the file PATH, and return whether it is enabled now.

    Nobody may have the file open for writing, and its owner must be able to write it. Raises OSError for an error
    that does not mean that there is no fs-verity, such as a full disk.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _ENABLE, _ARGUMENT)
    except OSError as error:
        if error.errno in _ABSENT:
            return False
        raise
    finally:
        os.close(descriptor)
    return True


def _marks(root: Path) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return path and status of ROOT and of everything below it. Links are not followed."""
    entries = {cachetree.TOP: os.lstat(root)}
    for directory, below, names in os.walk(root):
        for name in (*below, *names):
            entry = os.path.join(directory, name)
            entries[os.path.relpath(entry, root)] = os.lstat(entry)
    return tuple((path, cachetree.marks(info)) for path, info in sorted(entries.items()))
