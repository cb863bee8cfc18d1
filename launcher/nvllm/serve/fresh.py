"""Fresh instances: engines beside the one that `serve` starts, each with a name and a port of its own.

A bisect and an ablation start many of one profile. Each is examined as `serve` examines it, and holds the same locks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from nvllm.core import reading
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.spec import Profile
from nvllm.engine.engine import Engine
from nvllm.host.locks import HeldLocks
from nvllm.image.identity import Build
from nvllm.models.memo import HashCache
from nvllm.serve import owners, planner, supervisor
from nvllm.serve.examination import Depth, Examination, Instance, examine_build


@dataclass
class FreshInstances:
    """Instances for the task PURPOSE, one word such as ``bisect``. COMMAND is what the holder of a lock is called."""

    project: Project
    places: Places
    engine: Engine
    purpose: str
    command: str
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _ports: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def examined(
        self, build: Build, profile: str, depth: Depth, port: int | None = None
    ) -> Iterator[tuple[Examination, HeldLocks]]:
        """Examine PROFILE of BUILD as far as DEPTH says, and hold the locks of the new instance.

        It gets PORT, or a free one.

        Raises Refused as `supervisor.hold_locks` does, and NV920 if the name of the instance cannot be recorded.
        """
        with contextlib.ExitStack() as stack:
            with self._ports:  # one thread at a time: two instances must not choose the same port
                name = self.name(build.spec.name, profile)
                # Until it is over, the name is this project's: no other one's `stop` takes it.
                owners.claim(self.project, self.places, name)
                stack.callback(owners.release, self.project, self.places, name)
                instance = Instance(name, profile, free_port() if port is None else port)
                hashes = HashCache.load(self.places.state / "verified.json")
                examination = examine_build(
                    self.project, self.places, build, instance, self.engine, depth, hashes, Silent()
                )
                held_locks = stack.enter_context(supervisor.hold_locks(examination, self.places, self.command))
            yield examination, held_locks

    def clear(self, image: str, profile: str) -> None:
        """Remove the containers of all instances of PROFILE of IMAGE for this purpose, also those of a killed process.

        The caller holds a lock that only one process of this purpose has.
        """
        prefix = self.prefix(image, profile)
        for container in self.engine.containers():
            if container.name.startswith(prefix) and container.by_nvllm:
                self.engine.kill(container.id)  # not stopped: only a trial asked it, and no request is waited for
                self.engine.remove(container.id)
        for link in reading.listed(self.places.instances, f"{prefix}*"):
            owners.release(self.project, self.places, link.name)

    def name(self, image: str, profile: str) -> str:
        """Return a new name for a container of PROFILE of IMAGE, one of those that `clear` removes."""
        return f"{self.prefix(image, profile)}{os.getpid()}-{next(self._numbers)}"

    def prefix(self, image: str, profile: str) -> str:
        # With project and home: `clear` must not end what another project's bisect, or another home's, has started.
        own = f"{self.project.id[:7]}-{self.places.id[:7]}"
        return f"{planner.instance_name(image, profile)}-{self.purpose}-{own}-"


def with_profile(build: Build, name: str, profile: Profile) -> Build:
    """Return BUILD with PROFILE in the place of its profile NAME."""
    return replace(build, spec=replace(build.spec, profiles={**build.spec.profiles, name: profile}))


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    # The kernel chooses. Until the container has the port, its lock keeps it from other processes of nvllm alone.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
