"""Atomic writes: a crash, a full disk or a second process leaves the old file or the new one, never a part.

An error while writing becomes one refusal: NV911 for files of a blessing, NV920 for any other file that nvllm keeps.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from nvllm.core import paths
from nvllm.core.refusal import Refused, refuse, refusing

WriteCode = Literal["NV911", "NV920"]
"""The code of a failed write: a file of a blessing, or another file."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def full(error: OSError) -> Refused | None:
    """Return NV920 if ERROR is about a full disk or quota, None otherwise."""
    if error.errno not in _FULL:
        return None
    where = str(error.filename) if error.filename is not None else "a file system that nvllm writes to"
    cure = "df -h && nvllm gc"
    return refuse("NV920", where, "room for what is written", error.strerror or str(error), cure)


@contextmanager
def writing(path: Path, code: WriteCode = "NV911") -> Iterator[None]:
    """Turn every OSError of the context into Refused with CODE for PATH."""
    cure = f"make room or give access at {path.parent}, then run the command again"
    with refusing(code, str(path), "a place that takes what is written", cure):
        yield


def absent(directory: Path, option: str) -> None:
    """Raise Refused NV108 if DIRECTORY, the value of OPTION, exists."""
    if os.path.lexists(directory):
        cure = f"name another directory, such as {shlex.quote(f'{directory.absolute()}-2')}"
        raise refuse("NV108", option, "a directory that is not there yet", str(directory), cure)


@contextmanager
def appearing(directory: Path, option: str) -> Iterator[Path]:
    """Yield a directory to fill; it becomes DIRECTORY when the context ends, and is removed if it fails.

    Raises Refused as `absent` does, and NV920 if DIRECTORY cannot be written.
    """
    absent(directory, option)
    with writing(directory, "NV920"), becoming(directory) as partial:
        yield partial


@contextmanager
def becoming(directory: Path) -> Iterator[Path]:
    """Yield a directory that becomes DIRECTORY, missing or empty until then, by one rename if the context succeeds.

    Raises Refused NV920 if DIRECTORY cannot be written.
    """
    # Beside the directory: a rename reaches no other file system.
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        with writing(directory, "NV920"):
            partial.mkdir(parents=True)
        yield partial
        with writing(directory, "NV920"):
            # Else a power cut can leave the directory under its new name, and without entries.
            for inner, _, _ in os.walk(partial):
                sync_directory(Path(inner))
            partial.rename(directory)
            sync_directory(directory.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # after the rename there is none


def link(source: Path, target: Path) -> None:
    """Hard-link the file SOURCE to TARGET, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sync_directory(path: Path) -> None:
    """Sync the directory PATH, so that its names are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reached(point: str, path: str = "") -> None:
    """Do nothing. Tests replace this, to kill the process at POINT or to change the file PATH there."""


@contextmanager
def replacing(path: Path, mode: int, name: str = "file", code: WriteCode = "NV911") -> Iterator[BinaryIO]:
    """Yield a stream; what is written to it becomes the content of PATH, with MODE, by one rename after the context.

    Raises Refused with CODE; PATH is then unchanged or, if only the last sync failed, complete. Calls
    `reached` with ``NAME written`` when the bytes are on the disk under another name, and with ``NAME renamed``.
    """
    with writing(path, code):
        descriptor, unnamed = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fchmod(stream.fileno(), mode)  # mkstemp made it for this user alone
                # A rename can be on the disk before the bytes: after a power cut that is an empty file.
                os.fsync(stream.fileno())
            reached(f"{name} written")
            os.replace(unnamed, path)
        except BaseException:  # Ctrl-C too leaves no file behind
            os.unlink(unnamed)
            raise
        reached(f"{name} renamed")
        sync_directory(path.parent)  # else a power cut can undo the rename


def replace(path: Path, data: bytes, mode: int, name: str = "file", code: WriteCode = "NV911") -> None:
    """Make DATA the content of PATH, with MODE, as `replacing` does."""
    with replacing(path, mode, name, code) as stream:
        stream.write(data)


def keep(path: Path, data: bytes, name: str = "file", code: WriteCode = "NV920") -> None:
    """Make DATA the content of PATH, for this user alone, as `replacing` does; the directory is made if need be."""
    with writing(path, code):
        paths.ensure(path.parent)
    replace(path, data, 0o600, name, code)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a lock on DIRECTORY, after waiting for its holder. The kernel frees it when the process ends.

    The directory itself is locked, so no lock file appears under version control. Raises Refused NV513 on a file system
    without hard locks.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        cure = "keep the project and NVLLM_HOME on a local disk"
        with refusing("NV513", str(directory), "hard file locks (flock)", cure):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
