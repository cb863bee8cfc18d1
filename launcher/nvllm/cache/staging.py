"""Staging: a private copy of a cache, hashed while it is copied, which is what gets mounted.

Hashing a place and then mounting it leaves time to change it in between. So each file is opened once, without
following links, and every byte that is hashed is the byte that is written into the copy. The copy lies in a
directory of a fresh name that its owner alone can enter; only what was expected is copied; nothing of it may be
written afterwards. What happens to the source from then on does not matter.

Where the file system has fs-verity, the kernel guards the copy: it refuses every write to a file, and fails every read
of bytes that are not the enabled ones. ext4 without the feature, tmpfs and most others do not have it, and a file
system says so only when it is asked for a real file. So it is tried for each copy.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nvllm.cache import tree as cachetree
from nvllm.cache.tree import Consumer, Rule, Tree, Unfit
from nvllm.core.durable import writing
from nvllm.core.paths import ensure
from nvllm.core.refusal import Refusal, refuse_any

Level = Literal["staged", "fs-verity"]
"""How the copy is guarded: by its owner's uid and modes, or by the kernel for every byte of every file."""

_CHUNK = 128 * 2**10
"""Bytes that are hashed while they are still in the processor's cache, and then written."""

# Of linux/fsverity.h, the same on every architecture that Linux gives this layout of request numbers.
_ENABLE = 0x40806685
_VERSION, _SHA256, _BLOCK = 1, 1, 4096
_ARGUMENT = struct.pack("=IIIIQIIQ11Q", _VERSION, _SHA256, _BLOCK, 0, 0, 0, 0, 0, *[0] * 11)

_ABSENT = frozenset(
    {errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES}
)
"""What is answered where the file system, the kernel or a container's filter has none, or none of this kind."""

Admit = Callable[[str, os.stat_result], None]
"""Judges a file before it is copied, by path and status; raises Unfit for one that is not to be copied."""


def _trace(point: str) -> None:
    """Do nothing. Tests replace this in a child process, to kill it at POINT."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A verified copy: PATH is what to mount, TREE what lies there, LEVEL how it is guarded."""

    path: Path
    tree: Tree
    level: Level
    marks: tuple[tuple[str, tuple[int, ...]], ...]
    """Path and status of everything in it, for `recheck`."""


def stage(source: Path, expected: Tree, parent: Path, cure: str) -> Staged:
    """Copy the cache at SOURCE, which must be exactly EXPECTED, into a fresh directory in PARENT.

    PARENT is made if it is not there. The copy is not forced onto the disk: it serves one start, and no later
    run trusts it. Raises Refused with NV907 and CURE for every deviation, and NV911 if the copy cannot be
    written; nothing is left then. `discard` removes the copy when the engine has ended.
    """
    with writing(parent):
        private = Path(tempfile.mkdtemp(dir=ensure(parent), prefix="cache-"))
    try:
        target = private / "tree"
        copier = Copier(target, _admits(expected))
        _exact(source, expected, cure, copier.copy)
        _trace("copied")
        copier.seal(expected)
        return Staged(target, expected, copier.level, _marks(target))
    except BaseException:
        discard(private)
        raise


def verify(source: Path, expected: Tree, cure: str) -> None:
    """Read the cache at SOURCE where it lies. Raises Refused with NV907 and CURE for every way it is not EXPECTED."""
    _exact(source, expected, cure, cachetree.digest)


def _admits(expected: Tree) -> Admit:
    """Return what lets only files of EXPECTED pass, by path and size: a huge file must not fill the disk first."""
    sizes = {file.path: file.size for file in expected.files}

    def admit(path: str, info: os.stat_result) -> None:
        if path not in sizes:
            raise Unfit("an extra file", "no such file")
        if info.st_size != sizes[path]:
            raise Unfit(f"{info.st_size} bytes", f"{sizes[path]} bytes")

    return admit


def _exact(source: Path, expected: Tree, cure: str, consume: Consumer) -> None:
    """Read SOURCE by CONSUME. Raises Refused for every way it is not EXPECTED; of one file, the first reason."""
    found, refusals = cachetree.walk(source, cure, consume)
    if not found.directories:  # there is no directory at all, so one refusal says it for all of its files
        refuse_any(refusals)
    refused = {refusal.where for refusal in refusals}
    wrong = cachetree.differences(expected, found, source, cure)
    refuse_any([*refusals, *(one for one in wrong if one.where not in refused)])


def copy(source: Path, target: Path, cure: str, *, owner: int | None, left_out: Rule) -> Tree:
    """Copy the fit cache at SOURCE, whatever it holds, to TARGET, and return the sealed tree that lies there.

    All of SOURCE belongs to OWNER (None: us). Every file and directory of the copy has reached the disk. Raises
    Refused as `cachetree.read` does, and NV911 if the copy cannot be written; then TARGET may be there in part.
    """

    def admit(_path: str, _info: os.stat_result) -> None:
        pass

    copier = Copier(target, admit, durable=os.fsync)
    found, refusals = cachetree.walk(source, cure, copier.copy, owner=owner, left_out=left_out)
    refuse_any(refusals)
    _trace("copied")
    tree = found.sealed()
    copier.seal(tree)
    return tree


def recheck(staged: Staged, cure: str) -> list[Refusal]:
    """Return what has been touched in STAGED since it was made, as NV907 with CURE, without reading any bytes.

    A file cannot be changed without its change time moving, and no user can set that back.
    """
    before, now = dict(staged.marks), dict(_marks(staged.path))
    return [
        Refusal(
            "NV907",
            str(staged.path / path),
            "untouched since it was staged" if path in before else "no such file",
            "it went away" if path not in now else "touched" if path in before else "an extra file",
            cure,
        )
        for path in sorted(before.keys() | now.keys())
        if before.get(path) != now.get(path)
    ]


def discard(directory: Path) -> None:
    """Remove DIRECTORY, a copy of ours, although nothing in it may be written. It may be gone already."""
    if not directory.is_dir():
        return
    for place, below, _ in os.walk(directory):
        os.chmod(place, 0o700)
        below[:] = [name for name in below if not os.path.islink(os.path.join(place, name))]
    shutil.rmtree(directory)


class Copier:
    """Makes the copy at TARGET, of the files that ADMIT lets pass; DURABLE is called with each finished descriptor."""

    def __init__(self, target: Path, admit: Admit, durable: Callable[[int], None] | None = None) -> None:
        self.target = target
        self.admit = admit
        self.durable = durable
        self.level: Level = "staged"
        self._buffer = bytearray(_CHUNK)
        self._guarded: bool | None = None

    def copy(self, path: str, descriptor: int, info: os.stat_result) -> str:
        """Copy the file PATH from DESCRIPTOR and return the sha256 of what was copied: a `cachetree.Consumer`."""
        self.admit(path, info)
        place = self.target / path
        with writing(place):
            os.makedirs(place.parent, mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            output = os.open(place, flags, 0o600)
        try:
            return self._pour(place, descriptor, output, info.st_size)
        finally:
            os.close(output)

    def _pour(self, place: Path, descriptor: int, output: int, size: int) -> str:
        view, sha256, left = memoryview(self._buffer), hashlib.sha256(), size
        while count := os.readv(descriptor, [self._buffer]):
            left -= count
            if left < 0:
                raise Unfit("a file that grew while it was read", f"{size} bytes")
            sha256.update(view[:count])
            with writing(place):
                written = 0
                while written < count:
                    written += os.write(output, view[written:count])
        return sha256.hexdigest()

    def seal(self, tree: Tree) -> None:
        """Give the copy the directories and modes of TREE, and each file the kernel's guard where there is one."""
        with writing(self.target):
            for one in tree.directories:
                os.makedirs(self.target / one.path, mode=0o700, exist_ok=True)
            for file in tree.files:
                self._seal_file(file.path, int(file.mode, 8))
            for one in reversed(tree.directories):  # a directory's own path sorts before those below it
                self._close(self.target / one.path, os.O_DIRECTORY, int(one.mode, 8))
        self.level = "fs-verity" if self._guarded else "staged"

    def _seal_file(self, path: str, mode: int) -> None:
        place = self.target / path
        # Enabled while the owner may still write, or the kernel refuses. One file without it is a copy without it.
        if self._guarded is not False:
            self._guarded = enable_verity(place)
        self._close(place, os.O_NONBLOCK, mode)

    def _close(self, place: Path, flags: int, mode: int) -> None:
        """Give what lies at PLACE its MODE, as the last thing that ever happens to it."""
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
        try:
            os.fchmod(descriptor, mode)
            if self.durable is not None:
                self.durable(descriptor)
        finally:
            os.close(descriptor)


def enable_verity(path: Path) -> bool:
    """Enable fs-verity for the file PATH, and return whether it is guarded now.

    Nobody may have the file open for writing, and its owner must be able to write it. Raises OSError for what
    is no answer to the question, such as a full disk.
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
    """Return path and status of all that lies at and below ROOT, links not followed."""
    found = {cachetree.TOP: os.lstat(root)}
    for directory, below, names in os.walk(root):
        for name in (*below, *names):
            place = os.path.join(directory, name)
            found[os.path.relpath(place, root)] = os.lstat(place)
    return tuple((path, cachetree.marks(info)) for path, info in sorted(found.items()))
