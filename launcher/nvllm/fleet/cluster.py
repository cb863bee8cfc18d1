"""The Ray cluster behind ``ray://HOST``: the only module that imports ray, which is an extra.

Ray chooses nothing here. A task goes to one machine by its id and never to another; it is never retried; it runs one
`nvllm worker`, which is told to end when the process that started it dies. Bytes go in, and bytes come out.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nvllm.core.refusal import Refused, refuse
from nvllm.fleet.machines import ClusterNode, NotCarriedError

LABEL = "nvllm-class"
"""The label of a node that says its class: ``ray start --labels nvllm-class=CLASS``."""

_ADDRESS = re.compile(r"ray://[A-Za-z0-9.-]+(:[0-9]{1,5})?")
_PORT = 10001
"""Where a head of Ray listens for clients, unless it was told another port."""
_OPEN = "this machine takes work from whoever reaches it: RAY_AUTH_MODE is not `token` there"
_ATTEMPTS = 3
"""Connections to a head, each of which may fail for 40 s (docs/fleet.md)."""
_BROKEN = ("Initialization failure from server", "already been disconnected")
"""What Ray says if the process that the head starts for a driver did not come up, or died."""

_SAID = 600
"""Characters of a failure that are shown."""


def _carrier() -> Callable[[bytes], bytes]:
    """Return what runs on the node. It is sent by value, so a node needs nvllm on its PATH and not in Ray's Python."""

    open_to_all = _OPEN

    def carry(line: bytes) -> bytes:
        import os
        import subprocess

        if os.environ.get("RAY_AUTH_MODE") != "token":
            raise PermissionError(open_to_all)
        # `cancel` kills Ray's process of the task, and not what that has started: the worker has to see its end.
        argv = ["setpriv", "--pdeathsig", "TERM", "nvllm", "worker"]
        done = subprocess.run(argv, input=line, capture_output=True, check=False)
        if done.returncode or not done.stdout:
            errors = done.stderr.decode("utf-8", "replace")[-400:]
            raise RuntimeError(f"nvllm worker ended with {done.returncode}: {errors}")
        return done.stdout

    return carry


@dataclass
class RayCluster:
    """A connection to the cluster at ADDRESS; see `machines.Carrier`."""

    address: str
    _carry: Any
    _running: set[Any] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def greet(self) -> None:
        """No machine was named: `connected` has asked the head."""

    def machines(self) -> Sequence[ClusterNode]:
        try:
            nodes = [node for node in ray.nodes() if node["Alive"]]
        except (RayError, ConnectionError) as error:
            raise _unreachable(self.address, "a cluster that answers", str(error)) from error
        return [
            ClusterNode(
                node["NodeID"],
                str(node["NodeName"]),
                str(node["Labels"].get(LABEL, "")),
                int(node["Resources"].get("object_store_memory", 0)),
            )
            for node in nodes
        ]

    def carry(self, machine: ClusterNode, line: bytes) -> bytes:
        where = NodeAffinitySchedulingStrategy(machine.id, soft=False)
        running = None
        try:
            running = self._carry.options(scheduling_strategy=where).remote(line)
            with self._guard:
                self._running.add(running)
            answer: bytes = ray.get(running)
        except RayTaskError as error:
            if isinstance(error.cause, PermissionError):
                cure = (
                    "ray stop && RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/.ray/auth_token ray start "
                    "--address=HEAD:6379, on each machine; the head first, with --head"
                )
                expected = "RAY_AUTH_MODE=token, here and on every machine"
                raise refuse("NV346", machine.name, expected, _OPEN, cure) from error
            raise NotCarriedError(str(error.cause or error)[-_SAID:]) from error
        except RayError as error:
            raise NotCarriedError(f"{type(error).__name__}: {str(error).strip()[:_SAID]}") from error
        except ConnectionError as error:
            raise _unreachable(self.address, "a cluster that answers", str(error)) from error
        finally:
            with self._guard:
                self._running.discard(running)
        return answer

    def cancel(self) -> None:
        with self._guard:
            running = tuple(self._running)
        for task in running:
            with contextlib.suppress(RayError, ConnectionError):
                ray.cancel(task, force=True)


@contextlib.contextmanager
def connected(address: str) -> Iterator[RayCluster]:
    """Connect to the cluster at ADDRESS, with the token that the environment names, until the context ends.

    Raises Refused NV108 for an address of another form, NV346 if no cluster takes the token.
    """
    if not _ADDRESS.fullmatch(address):
        raise refuse(
            "NV108", "--on", "ray://HOST or ray://HOST:PORT", address, "write ray:// before the name of the host"
        )
    named = address if address.count(":") > 1 else f"{address}:{_PORT}"
    _connect(named, address)
    try:
        # A task takes no resource of Ray's: the worker's locks decide, and each machine gets one task at a time.
        yield RayCluster(address, ray.remote(max_retries=0, num_cpus=0)(_carrier()))
    finally:
        ray.shutdown()


def _connect(named: str, address: str) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            ray.init(named, logging_level=logging.ERROR, log_to_driver=False)
        except (RayError, ConnectionError, ValueError, RuntimeError) as error:
            # The head forks a process for each driver while other threads of it use gRPC, and the child may die of it:
            # on two busy cores in 3 connections of 27, and in none of 40 with GRPC_ENABLE_FORK_SUPPORT=0 there.
            if attempt == _ATTEMPTS or not any(message in str(error) for message in _BROKEN):
                raise _unreachable(address, "a cluster that takes this token", str(error)) from error
            ray.shutdown()
        else:
            return


def _unreachable(address: str, expected: str, reason: str) -> Refused:
    cure = "ray status, on the head; and RAY_AUTH_TOKEN_PATH names the same token there and here"
    return refuse("NV346", address, expected, " ".join(reason.split())[:_SAID], cure)
