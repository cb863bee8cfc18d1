"""The exact tree of a compile cache: every directory, every file, its size, mode and sha256, and nothing else.

A compile cache is code: the engine unpickles or loads every file of it. So a tree is read as an exact set. No link is
followed, no file is skipped unless a rule names it, and each file is opened once, relative to the descriptor of its
directory, and checked and read through that one descriptor. Empty directories count: none can be created below a
read-only mount, and Inductor needs ``inductor_cache/locks`` as the mount point of a writable mount, and on a GPU all of
``inductor_cache``.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeAlias

from nvllm.core import canonical, durable, fields, reading
from nvllm.core.canonical import Json
from nvllm.core.fields import NOT_EMPTY, Count, Sha256
from nvllm.core.refusal import Refusal

DOMAIN = "nvllm.cachetree/1"

TOP = "."
"""The path of the top directory of a tree."""

LOCKS = "locks"
"""The name of a directory in which the engine creates lock files, also when it only reads the cache."""

INDUCTOR = "inductor_cache"
"""The name of Inductor's directory. The engine writes into it also when it only loads: what it compiles for a request
of a new kind, such as one with ``logprobs``, and on a GPU what Inductor unpacks from a compiled graph."""

WRITTEN = frozenset({LOCKS, INDUCTOR})
"""The names of the directories of a cache that an engine writes into when it loads the cache."""

DEEPEST = 64
"""The greatest depth of directories; no compile cache is deeper."""

_READ_ONLY, _EXECUTABLE = "0444", "0555"
_MOUNT_POINT = "0755"
"""The mode of a directory that the engine writes into: Docker gives a tmpfs the mode of its mount point."""

TreePath = Annotated[
    str, fields.Rule(r"^(?!/)(?!(.*/)?\.\.(/|$))[^\u0000]+$", "a path below the top of the tree, without `..`")
]


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file: PATH below the top, SIZE in bytes, MODE in octal such as ``0444``, SHA256 in hex."""

    path: TreePath
    size: Count
    mode: Annotated[str, fields.Rule(choices=(_READ_ONLY, _EXECUTABLE))]
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class TreeDirectory:
    path: TreePath
    mode: Annotated[str, fields.Rule(choices=(_EXECUTABLE, _MOUNT_POINT))]


_Part: TypeAlias = TreeFile | TreeDirectory


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree, as `of` makes it: both tuples are sorted by the bytes of their paths, and the top is a directory."""

    files: Annotated[tuple[TreeFile, ...], NOT_EMPTY]
    directories: Annotated[tuple[TreeDirectory, ...], NOT_EMPTY]

    @property
    def hash(self) -> str:
        """The tree hash, 64 hex digits: equal only for trees that are equal in everything."""
        value: Json = {
            "files": [[file.path, file.size, file.mode, file.sha256] for file in self.files],
            "directories": [[directory.path, directory.mode] for directory in self.directories],
        }
        return canonical.digest(DOMAIN, value)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def lock_directories(self) -> tuple[str, ...]:
        """Paths of the directories of a sealed tree that the engine writes lock files into, outside of the `seeds`."""
        locks = [directory.path for directory in self.directories if _named(directory.path, {LOCKS})]
        return tuple(path for path in locks if not any(path.startswith(f"{seed}/") for seed in self.seeds))

    @property
    def seeds(self) -> tuple[str, ...]:
        """Paths of the directories of a sealed tree that the engine gets as a writable copy."""
        return tuple(
            directory.path
            for directory in self.directories
            if _named(directory.path, {INDUCTOR}) and directory.mode == _MOUNT_POINT
        )

    def below(self, directory: str) -> tuple[TreeFile, ...]:
        """Return the files below DIRECTORY, with paths relative to it."""
        start = f"{directory}/"
        files = [file for file in self.files if file.path.startswith(start)]
        return tuple(replace(file, path=file.path.removeprefix(start)) for file in files)

    @property
    def written(self) -> Set[str]:
        """Names of the directories of a sealed tree that the engine writes into."""
        return {PurePosixPath(directory.path).name for directory in self.directories if directory.mode == _MOUNT_POINT}

    @property
    def is_sealed(self) -> bool:
        """Whether this is a tree as `sealed` makes it, or made it: on the CPU Inductor's directory was read-only."""
        return self in (self.sealed(), self.sealed({LOCKS}))

    def sealed(self, written: Set[str] = WRITTEN) -> Tree:
        """Return this tree with the modes of a stored tree: nobody may write, everybody may read.

        Only directories with one of the names WRITTEN stay writable for their owner: a tmpfs is mounted on them.
        """
        return of(
            [replace(file, mode=sealed_mode(file.mode)) for file in self.files],
            [
                replace(directory, mode=_MOUNT_POINT if _named(directory.path, written) else _EXECUTABLE)
                for directory in self.directories
            ],
        )


def of(files: Iterable[TreeFile], directories: Iterable[TreeDirectory]) -> Tree:
    """Return the tree of FILES and DIRECTORIES, in whatever order they come."""
    return Tree(
        tuple(sorted(files, key=lambda file: file.path.encode())),
        tuple(sorted(directories, key=lambda directory: directory.path.encode())),
    )


def _named(path: str, names: Set[str]) -> bool:
    return PurePosixPath(path).name in names


def sealed_mode(mode: str) -> str:
    """Return the mode of a stored file that had MODE; only its owner's right to execute is kept."""
    return _EXECUTABLE if int(mode, 8) & stat.S_IXUSR else _READ_ONLY


def problems(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each reason why no directory can have TREE, which comes from a file."""
    directories = {directory.path for directory in tree.directories}
    paths = [*(file.path for file in tree.files), *(directory.path for directory in tree.directories)]
    if TOP not in directories:
        yield TOP, "not among the directories"
    for path in sorted({path for path in paths if paths.count(path) > 1}):
        yield path, "named more than once"
    for path in paths:
        if path == TOP:
            continue
        if "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
            yield path, "no path below the top"
        elif str(PurePosixPath(path).parent) not in directories:
            yield path, "in a directory that is not among the directories"
    if tree != of(tree.files, tree.directories):
        yield TOP, "not sorted by path"


class Unfit(Exception):  # noqa: N818 - what was found, not an error of the program
    """A file or directory is not fit for a tree: what was EXPECTED of it, and its PROBLEM."""

    def __init__(self, problem: str, expected: str = "a regular file of its owner alone, with one name") -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected


Rule = Callable[[str, os.stat_result], bool]
"""Returns whether a regular file, given its path and status, is skipped."""

Consumer = Callable[[str, int, os.stat_result], str]
"""Reads a file, given its path, an open descriptor and its status, and returns its sha256. May raise Unfit."""


def nothing(_path: str, _info: os.stat_result) -> bool:
    """Skip no file: the rule for a tree that is stored or served."""
    return False


def lock_files(path: str, info: os.stat_result) -> bool:
    """Skip the empty lock files of a new cache: the rule for the output of a cold compile.

    The engine creates them again, in a writable mount. A file that is not empty is not skipped.
    """
    file = PurePosixPath(path)
    return file.suffix == ".lock" and file.parent.name == LOCKS and info.st_size == 0


def digest(_path: str, descriptor: int, _info: os.stat_result) -> str:
    """Return the sha256 of the file behind DESCRIPTOR."""
    return hashlib.file_digest(FileIO(descriptor, closefd=False), "sha256").hexdigest()


def walk(
    root: Path, cure: str, consume: Consumer, *, owner: int | None = None, left_out: Rule = nothing
) -> tuple[Tree, list[Refusal]]:
    """Return the fit part of the tree at ROOT, each file read by CONSUME, and the refusals for the rest.

    All of it must belong to OWNER (a uid; None: this user). There is one NV907, with CURE, for each link, special file,
    file with several names, foreign owner, set-id or group or world write bit, name that is not UTF-8, and for what
    cannot be read or changes while it is read.
    """
    walker = _Walker(root, cure, consume, os.geteuid() if owner is None else owner, left_out)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        problem = "no such directory" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        return of([], []), [Refusal("NV907", str(root), "the directory of a cache", problem, cure)]
    try:
        walker.entry(TOP, partial(walker.directory, descriptor, TOP, 0))
    finally:
        os.close(descriptor)
    return of(walker.files, walker.directories), walker.refusals


def differences(expected: Tree, actual: Tree, top: Path, cure: str) -> list[Refusal]:
    """Return NV907 with CURE for every difference between the tree ACTUAL at TOP and EXPECTED."""
    refusals: list[Refusal] = []

    def compare(recorded: Mapping[str, _Part], there: Mapping[str, _Part], kind: str) -> None:
        for path in sorted(recorded.keys() | there.keys()):
            for before, seen in _pairs(recorded.get(path), there.get(path), kind):
                refusals.append(Refusal("NV907", _shown(top, path), before, seen, cure))

    compare({file.path: file for file in expected.files}, {file.path: file for file in actual.files}, "file")
    directories = {directory.path: directory for directory in actual.directories}
    compare({directory.path: directory for directory in expected.directories}, directories, "directory")
    return refusals


def _pairs(expected: _Part | None, actual: _Part | None, kind: str) -> Iterator[tuple[str, str]]:
    if expected is None or actual is None:
        yield (f"no such {kind}", f"an extra {kind}") if expected is None else (f"a {kind}", f"no such {kind}")
        return
    if expected.mode != actual.mode:
        yield f"mode {expected.mode}", f"mode {actual.mode}"
    if isinstance(expected, TreeFile) and isinstance(actual, TreeFile):
        if expected.size != actual.size:
            yield f"{expected.size} bytes", f"{actual.size} bytes"
        elif expected.sha256 != actual.sha256:
            yield f"sha256 {expected.sha256}", f"sha256 {actual.sha256}"


def _shown(root: Path, path: str) -> str:
    """Return the path of PATH below ROOT as text that can be printed, whatever bytes it has."""
    return os.fsencode(root / path).decode(errors="backslashreplace")


def marks(info: os.stat_result) -> tuple[int, ...]:
    """Return the parts of INFO that show any change of a file or directory; no user can set its ctime back."""
    times = (info.st_mtime_ns, info.st_ctime_ns)
    return (info.st_dev, info.st_ino, info.st_mode, info.st_uid, info.st_nlink, info.st_size, *times)


@dataclass(slots=True)
class _Walker:
    """One walk through the tree at ROOT, with the files, directories and refusals so far."""

    root: Path
    cure: str
    consume: Consumer
    owner: int
    left_out: Rule
    files: list[TreeFile] = field(default_factory=list)
    directories: list[TreeDirectory] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def entry(self, path: str, visit: Callable[[], None]) -> None:
        """Call VISIT for PATH, and record a refusal if it is not fit."""
        try:
            visit()
        except Unfit as unfit:
            self.refuse(path, unfit.expected, unfit.problem)
        except FileNotFoundError:
            self.refuse(path, "a file that is there until it is read", "it was removed")
        except OSError as error:
            self.refuse(path, "a file that can be read", error.strerror or str(error))

    def refuse(self, path: str, expected: str, problem: str) -> None:
        self.refusals.append(Refusal("NV907", _shown(self.root, path), expected, problem, self.cure))

    def directory(self, descriptor: int, path: str, depth: int) -> None:
        before = os.fstat(descriptor)
        self._check_owner(before, "a directory")
        self.directories.append(TreeDirectory(path, _octal(before)))
        if depth > DEEPEST:
            raise Unfit(f"directories more than {DEEPEST} deep", "a compile cache")
        for name in sorted(os.listdir(descriptor)):  # so that refusals come in one order on every file system
            inner = name if path == TOP else f"{path}/{name}"
            self.entry(inner, partial(self._named, descriptor, name, inner, depth))
        if marks(os.fstat(descriptor)) != marks(before):
            raise Unfit("a directory that changed while it was read", "a directory that nobody changes")

    def _named(self, above: int, name: str, path: str, depth: int) -> None:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise Unfit("a name that is not UTF-8") from error
        info = os.stat(name, dir_fd=above, follow_symlinks=False)
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFDIR:
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            try:
                self.directory(descriptor, path, depth + 1)
            finally:
                os.close(descriptor)
        elif kind != stat.S_IFREG:
            raise Unfit(reading.NOT_REGULAR[kind])
        elif not self.left_out(path, info):
            self._file(above, name, path)

    def _file(self, above: int, name: str, path: str) -> None:
        # O_NONBLOCK: if a FIFO has replaced the file, the open must not block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=above)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise Unfit(reading.NOT_REGULAR[stat.S_IFMT(before.st_mode)])
            if before.st_nlink != 1:
                raise Unfit(f"a file with {before.st_nlink} names (hard links)")
            self._check_owner(before, "a file")
            if attributes := _attributes(descriptor):
                raise Unfit(
                    f"a file with {', '.join(attributes)}", "a file without attributes of users and capabilities"
                )
            durable.reached("opened", path)
            sha256 = self.consume(path, descriptor, before)
            if marks(os.fstat(descriptor)) != marks(before):
                raise Unfit("a file that changed while it was read", "a file that nobody changes")
        finally:
            os.close(descriptor)
        self.files.append(TreeFile(path, before.st_size, _octal(before), sha256))

    def _check_owner(self, info: os.stat_result, kind: str) -> None:
        if info.st_uid != self.owner:
            raise Unfit(f"{kind} of user {info.st_uid}", f"{kind} of user {self.owner}")
        if info.st_mode & 0o7022:  # set-id and sticky bits, and the right to write of group and others
            raise Unfit(f"mode {_octal(info)}", f"{kind} that only its owner may write, and that sets no id")


def _attributes(descriptor: int) -> list[str]:
    """Return the extended attributes of the file behind DESCRIPTOR that a user can set, and its capabilities.

    No hash covers them, and no copy takes them along, so a tree that has some is not what was blessed.
    """
    try:
        names = os.listxattr(descriptor)
    except OSError:  # a file system without any
        return []
    return [ascii(name)[1:-1] for name in sorted(names) if name.startswith("user.") or name == "security.capability"]


def _octal(info: os.stat_result) -> str:
    return f"{stat.S_IMODE(info.st_mode):04o}"
