"""Writing so that a crash, a full disk or a second process leaves the old or the new, and never half of either.

What can go wrong while something is written becomes one refusal: NV911 where it belongs to a blessing, NV920 for
any other file that nvllm keeps. A caller that gets it knows that nothing half is in force.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from nvllm.core.refusal import Refusal, refuse

Code = Literal["NV911", "NV920"]
"""What is refused with: a blessing, or another file, could not be written."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def full(error: OSError) -> Refusal:
    """Return NV920 for ERROR, which must say that a disk, or what the user may have of it, is full; else raise it."""
    if error.errno not in _FULL:
        raise error
    where = str(error.filename) if error.filename is not None else "a file system that nvllm writes to"
    cure = "make room: df -h shows which one is full, `nvllm gc` removes what no image and no blessing needs"
    return Refusal("NV920", where, "room for what is written", error.strerror or str(error), cure)


@contextmanager
def writing(place: Path, code: Code = "NV911") -> Iterator[None]:
    """Turn every OSError of the context into Refused with CODE for PLACE."""
    try:
        yield
    except OSError as error:
        cure = f"make room or give access at {place.parent}, then run the command again"
        found = error.strerror or str(error)
        raise refuse(code, str(place), "a place that takes what is written", found, cure) from error


def read(path: Path) -> bytes:
    """Return the content of the file PATH; not through a link, and without waiting for whatever else lies there."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        return stream.read()


def absent(directory: Path, option: str) -> None:
    """Raise Refused NV108 if something is at DIRECTORY, which OPTION named as the place for something new."""
    if os.path.lexists(directory):
        cure = f"name another directory, or remove it: rm -r {directory}"
        raise refuse("NV108", option, "a directory that is not there yet", str(directory), cure)


@contextmanager
def appearing(directory: Path, option: str) -> Iterator[Path]:
    """Give the context a directory to fill that becomes DIRECTORY when it is whole, and goes again if it never is.

    Raises Refused as `absent` does, and NV920 if DIRECTORY cannot be written.
    """
    absent(directory, option)
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        with writing(directory, "NV920"):
            partial.mkdir(parents=True)
            yield partial
            partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def link(source: Path, place: Path) -> None:
    """Give the file SOURCE the second name PLACE, or copy it where that is another file system."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)


def sync_directory(path: Path) -> None:
    """Wait until the names in the directory PATH are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reached(point: str, path: str = "") -> None:
    """Do nothing. Tests replace this, to kill the process at POINT or to change the file PATH there."""


def replace(path: Path, data: bytes, mode: int, name: str = "file", code: Code = "NV911") -> None:
    """Make DATA the content of PATH, with MODE, by one rename.

    Raises Refused with CODE; PATH is then as it was or, if only the last sync failed, as it was to be: never half.

    Calls `reached` with ``NAME written`` when the bytes are on the disk under another name, and with ``NAME renamed``.
    """
    with writing(path, code):
        descriptor, unnamed = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            reached(f"{name} written")
            os.replace(unnamed, path)
        except BaseException:
            os.unlink(unnamed)
            raise
        reached(f"{name} renamed")
        sync_directory(path.parent)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of DIRECTORY itself, after waiting for whoever holds it. The kernel frees it at our death.

    The lock is on the directory, so that nothing has to lie in it that git would see. Raises Refused NV513
    where there are no hard locks.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            cure = "keep the project and NVLLM_HOME on a local disk"
            found = error.strerror or str(error)
            raise refuse("NV513", str(directory), "hard file locks (flock)", found, cure) from error
        yield
    finally:
        os.close(descriptor)
