"""Hard locks: who serves a profile, uses a GPU or a port, builds, writes to the store, bisects, measures, or works.

A lock is a flock on an open file, so the kernel frees it however its holder ends. The file is never removed:
otherwise two processes could lock two files of one name. The existence of a file is never taken for a lock: where
flock does not work, everything is refused.

After a lock is taken, its holder is written into the file as one line of JSON. That text is for people. It never
decides whether a lock is held, and it stays in the file when the lock is freed.

Locks are taken and tested under one more lock, the guard, which is held for milliseconds. A lock is tested by taking
it, so without the guard `nvllm status` could make a serve be refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args

from filelock import lock_descriptor, unlock_descriptor

from nvllm.core import clock, trusted
from nvllm.core.paths import ensure
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.host.facts import LockFacts

Kind = Literal["serve", "gpu", "port", "build", "store", "bisect", "evidence", "gate", "worker", "proof"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_GUARD = "guard"
_SUFFIX = ".lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# More than nvllm ever writes.
_LONGEST_TEXT = 16384
# The errors of flock on a file system without it: no such call, not for this file, no lock service.
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_LOCAL = "set NVLLM_HOME to a directory of yours on a local file system"


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a lock: its KIND, and a NAME of letters, digits, ``.``, ``_`` and ``-``, such as a port number."""

    kind: Kind
    name: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not _NAME.fullmatch(self.name):
            raise ValueError(f"no key of a lock: {self.kind} {self.name!r}")

    @property
    def filename(self) -> str:
        return f"{self.kind}-{self.name}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock. STARTED is UTC in ISO form; CONTAINER is the id, when there is one."""

    pid: int
    started: str
    command: str
    instance: str | None = None
    container: str | None = None

    def __str__(self) -> str:
        container = f", container {self.container[:12]}" if self.container else ""
        return f"pid {self.pid} ({self.command}) since {self.started}{container}"


def this_process(command: str, instance: str | None = None) -> Holder:
    """Return this process, which runs COMMAND, as the holder of locks that it takes now, for INSTANCE if it has one."""
    return Holder(os.getpid(), clock.now(), command, instance)


@dataclass(frozen=True, slots=True)
class LockStatus:
    """A lock that is held now. HOLDER is None if the text in the file cannot be read."""

    key: Key
    holder: Holder | None


class HeldLocks:
    """Locks that this process holds, until :meth:`release`, the end of the context, or the process's death.

    Programs that this process starts do not inherit the descriptors. A forked child that starts no program shares
    them, and keeps the locks until it ends or `release` is called.
    """

    def __init__(self, descriptors: dict[Key, int], holder: Holder) -> None:
        self._descriptors = descriptors
        self._holder = holder

    @property
    def command(self) -> str:
        """The command that holds them."""
        return self._holder.command

    def annotate(self, container: str) -> None:
        """Add the id of the CONTAINER that the locks are held for to the text in each file."""
        self._holder = replace(self._holder, container=container)
        for descriptor in self._descriptors.values():
            _write(descriptor, self._holder)

    def release(self) -> None:
        """Free all locks. A second call does nothing."""
        while self._descriptors:
            _, descriptor = self._descriptors.popitem()
            try:
                # Closing frees the lock too, but not while a fork shares the open file.
                unlock_descriptor(descriptor)
            finally:
                os.close(descriptor)

    def __enter__(self) -> HeldLocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class LocksLost(Refused):
    """Raised with the KEYS whose locks could not be taken, and why."""

    def __init__(self, lost: Mapping[Key, Sequence[Refusal]]) -> None:
        super().__init__(refusal for refusals in lost.values() for refusal in refusals)
        self.keys = frozenset(lost)


def acquire_all(directory: Path, keys: Iterable[Key], holder: Holder, patience: float = 5.0) -> HeldLocks:
    """Take the locks of all KEYS in DIRECTORY, or none, without waiting for any; write HOLDER into each.

    DIRECTORY is created if needed. Only the guard is waited for, at most PATIENCE seconds. Raises LocksLost with NV508
    for each lock that another process holds, and Refused NV513 if no lock can be taken there.
    """
    taken: dict[Key, int] = {}
    lost: dict[Key, Sequence[Refusal]] = {}
    with _guarded(directory, patience) as directory_descriptor:
        try:
            # In this order refusals are shown. Nothing waits for a lock here, so no order can be a deadlock.
            for key in sorted(set(keys), key=lambda key: (KINDS.index(key.kind), key.name)):
                try:
                    taken[key] = _take(directory_descriptor, key, directory / key.filename)
                except Refused as refused:
                    lost[key] = refused.refusals
            _refuse_lost(lost)
            for descriptor in taken.values():
                _write(descriptor, holder)
        except BaseException:
            HeldLocks(taken, holder).release()
            raise
    return HeldLocks(taken, holder)


def _refuse_lost(lost: Mapping[Key, Sequence[Refusal]]) -> None:
    if lost:
        raise LocksLost(lost)


def status(directory: Path, patience: float = 5.0) -> tuple[LockStatus, ...]:
    """Return the locks in DIRECTORY that are held now, by key. The locks decide, never the texts in the files.

    Raises Refused as :func:`acquire_all` does, except that no key is refused.
    """
    if not trusted.state(directory.parent, "NV513").directory(directory):
        return ()
    taken: list[LockStatus] = []
    with _guarded(directory, patience) as directory_descriptor:
        for name in sorted(os.listdir(directory_descriptor)):
            key = _key(name)
            if key is None:
                continue
            descriptor = _open(directory_descriptor, directory / name)
            try:
                if _lock(descriptor, directory / name):
                    unlock_descriptor(descriptor)
                else:
                    taken.append(LockStatus(key, _read(descriptor)))
            finally:
                os.close(descriptor)
    return tuple(taken)


def probe(directory: Path) -> LockFacts:
    """Return whether locks can be taken in DIRECTORY, by taking and freeing the guard."""
    try:
        with _guarded(directory, patience=5.0):
            return LockFacts(str(directory), None)
    except Refused as refused:
        return LockFacts(str(directory), "; ".join(refusal.found for refusal in refused.refusals))


def _key(filename: str) -> Key | None:
    """Return the key of the lock file FILENAME, None if it is another file."""
    kind, _, name = filename.removesuffix(_SUFFIX).partition("-")
    known = [candidate for candidate in KINDS if candidate == kind]
    if not known or not filename.endswith(_SUFFIX) or not _NAME.fullmatch(name):
        return None
    return Key(known[0], name)


@contextmanager
def _guarded(directory: Path, patience: float) -> Iterator[int]:
    """Hold the guard of DIRECTORY, and yield a descriptor of the directory itself."""
    path = directory / f"{_GUARD}{_SUFFIX}"
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory_descriptor = os.open(ensure(directory), flags)
    except OSError as error:
        raise Refused([_unusable(directory, error.strerror or str(error), _LOCAL)]) from error
    try:
        status = os.fstat(directory_descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            # A user who can write to the directory can replace a lock file; then two processes hold one lock.
            text = f"a directory of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
            raise Refused([_unusable(directory, text, f"chmod 700 {shlex.quote(str(directory))}")])
        descriptor = _open(directory_descriptor, path)
        try:
            # It is held for the opening and locking of files alone, and never while something runs under those locks.
            deadline = time.monotonic() + patience
            while not _lock(descriptor, path):
                if time.monotonic() >= deadline:
                    raise Refused([_stuck(path, patience)])
                time.sleep(0.01)  # flock(2) has no time limit of its own
            try:
                yield directory_descriptor
            finally:
                unlock_descriptor(descriptor)
        finally:
            os.close(descriptor)
    finally:
        os.close(directory_descriptor)


def _take(directory_descriptor: int, key: Key, path: Path) -> int:
    """Return a locked descriptor of PATH. Raises Refused NV508 if another process holds the lock of KEY."""
    descriptor = _open(directory_descriptor, path)
    try:
        refuse_any([] if _lock(descriptor, path) else [_another_holder(key, path, _read(descriptor))])
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open(directory_descriptor: int, path: Path) -> int:
    """Open the lock file PATH in the directory of the descriptor, and create it if needed.

    No link is followed, and the file is not truncated. It must be a regular file of this user that nobody else can
    open, because a user who can open a file can lock it.
    """
    # O_NONBLOCK: if something else has replaced the file, such as a FIFO, the open must not block.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path.name, flags, 0o600, dir_fd=directory_descriptor)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refused([_unusable(path, "a symbolic link", f"rm {shlex.quote(str(path))}")]) from error
        raise Refused([_unusable(path, error.strerror or str(error), _LOCAL)]) from error
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif status.st_uid != os.geteuid():
        problem = f"a file of user {status.st_uid}"
    elif status.st_nlink != 1:
        problem = f"a file with {status.st_nlink} names"
    elif status.st_mode & 0o077:
        problem = f"a file with mode {stat.S_IMODE(status.st_mode):04o}"
    if problem is not None:
        os.close(descriptor)
        raise Refused([_unusable(path, problem, f"stop every nvllm, then rm {shlex.quote(str(path))}")])
    return descriptor


def _lock(descriptor: int, path: Path) -> bool:
    """Try to take the lock, without waiting, and return whether it was taken. Raises Refused NV513 without flock."""
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        raise Refused([_unusable(path, f"flock answers: {error.strerror}", _LOCAL)]) from error


def _write(descriptor: int, holder: Holder) -> None:
    """Replace the text of a lock file whose lock this process holds.

    The new line is written before the rest is truncated, so a reader finds a whole first line at any time.
    """
    line = json.dumps(asdict(holder), sort_keys=True).encode() + b"\n"
    os.pwrite(descriptor, line, 0)
    os.ftruncate(descriptor, len(line))


def _read(descriptor: int) -> Holder | None:
    """Return the holder that the lock file names, None if nvllm did not write the text, or not all of it."""
    line, newline, _ = os.pread(descriptor, _LONGEST_TEXT, 0).partition(b"\n")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # the latter from brackets without end
        return None
    if not newline or not isinstance(value, dict):
        return None
    match value:
        case {
            "pid": int(pid),
            "started": str(started),
            "command": str(command),
            "instance": str() | None as instance,
            "container": str() | None as container,
        } if all(text.isprintable() for text in (started, command, instance or "", container or "")):
            return Holder(pid, started, command, instance, container)
        case _:
            return None


def _another_holder(key: Key, path: Path, holder: Holder | None) -> Refusal:
    holding = "a process that the file does not name" if holder is None else str(holder)
    if holder is not None and holder.instance is not None:
        cure = f"nvllm stop {holder.instance}"
    elif holder is not None:
        cure = f"tail --pid={holder.pid} -f /dev/null"
    else:
        cure = shlex.join(["fuser", "-v", str(path)])
    return Refusal("NV508", str(path), f"a free lock of {key.kind} {key.name}", holding, cure)


def _stuck(path: Path, patience: float) -> Refusal:
    return Refusal(
        "NV508",
        str(path),
        "a free guard lock, which nvllm holds for milliseconds",
        f"a process that has held it for more than {patience:g} s",
        shlex.join(["fuser", "-v", str(path)]),
    )


def _unusable(path: Path, problem: str, cure: str) -> Refusal:
    return Refusal("NV513", str(path), "a directory in which this user alone can take locks", problem, cure)
