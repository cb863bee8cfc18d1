"""Pins: what a process needs in the tree store and the state before a manifest names it, so that `gc` keeps it.

::

    <state>/pins/<random>.json    one line of JSON: the process, the boot of this host, and the names that it keeps

A bless makes a tree long before its manifest, and during `bless --on` it holds no lock of its own. A pin is made before
what it keeps and removed after the manifest. Its process holds a lock (flock) on the file, so the kernel says whether
the pin is in force: a process id alone would be taken for dead in another process namespace, or for alive after a
restart of the host. Process and boot are in the file for people.

Pins are made, changed and read under a lock on their directory, and `gc` removes a tree under it. So a process that has
pinned a tree and then finds it in the store keeps it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvllm.core import canonical, clock, durable, paths, proc, reading, trusted
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse


@dataclass(slots=True)
class Pin:
    """The pin at PATH, which this process holds. NAMES are what it keeps."""

    path: Path
    descriptor: int
    names: list[str] = field(default_factory=list)

    def keep(self, name: str) -> None:
        """Keep NAME from now on: a tree hash, or the name that `gc` has for a staged cache or evidence of a bless.

        Raises Refused NV911 if that cannot be written.
        """
        with durable.writing(self.path), durable.locked(self.path.parent):
            self.names.append(name)
            self.write()

    def write(self) -> None:
        """Write what this pin keeps. The caller holds the lock of its directory."""
        text: Json = {"pid": os.getpid(), "boot": proc.boot_id(), "made": clock.now(), "names": [*self.names]}
        line = canonical.encode(text) + b"\n"
        # In place, not by a rename as elsewhere: the lock is on this file, and a new one in its place has none.
        os.pwrite(self.descriptor, line, 0)
        os.ftruncate(self.descriptor, len(line))


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins in DIRECTORY, which is created with the first one."""

    directory: Path

    @contextlib.contextmanager
    def pin(self) -> Iterator[Pin]:
        """Yield a new pin, which keeps nothing yet, and remove it afterwards. Raises Refused NV911, or NV513."""
        path = self.directory / f"{uuid.uuid4().hex}.json"
        with durable.writing(path):
            paths.ensure(self.directory)
            with durable.locked(self.directory):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                pin = Pin(path, descriptor)
                pin.write()
        try:
            yield pin
        finally:
            path.unlink(missing_ok=True)  # before the lock is gone: a pin without one is a dead process's
            os.close(descriptor)

    @contextlib.contextmanager
    def still(self) -> Iterator[frozenset[str]]:
        """Yield what living processes keep; in the context nobody pins anything more.

        Raises Refused NV109 for a pin in force that cannot be read, and NV513 for one, or a directory of pins, that
        others could have written: then nobody knows what living processes keep.
        """
        trust = trusted.state(self.directory.parent, "NV513")
        if not trust.directory(self.directory):
            yield frozenset()
            return
        trust.listed(self.directory, "*.json")  # refuses a directory that cannot be read, before it is locked
        with durable.locked(self.directory):
            names: set[str] = set()
            for path in trust.listed(self.directory, "*.json"):
                if trust.file(path) and in_force(path):
                    names.update(_names(path))
            yield frozenset(names)


def in_force(path: Path) -> bool:
    """Return whether a process holds the pin at PATH. The caller holds the lock of its directory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:  # it was removed after it was listed
        return False
    except OSError as error:
        raise reading.refused(str(path), error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _names(path: Path) -> list[str]:
    try:
        document: Any = canonical.decode(reading.content(path, reading.STATE))
        return [str(name) for name in document["names"]]
    except OSError as error:
        raise reading.refused(str(path), error) from error
    except (ValueError, KeyError, TypeError) as error:
        cure = f"wait until the process that holds {path} has ended"
        raise refuse("NV109", str(path), "the names that a process keeps", "another document", cure) from error
