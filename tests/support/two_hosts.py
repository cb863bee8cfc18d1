"""Two hosts and a registry between them, as far as one machine can be three.

Each host is an engine in namespaces of its own: network, mounts and processes, with its own data, socket and HOME. The
registry has a network too, with a bridge; each host is joined to it by a pair of virtual interfaces, and to nothing
else. What is one for all: kernel, processors, disk and clock.

The links are cut, slowed and made to lose packets by the kernel. Its `netem`, which delays packets, is not used:
not every kernel has it. A token bucket (`tbf`) delays what waits in its queue, and iptables drops packets at random.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support import private_engines
from support.engine_world import Done, run, until
from support.private_engines import Kind, Namespaces, PrivateEngine
from support.real_registry import RealRegistry

NETWORK = "192.0.2"
"""Addresses for documentation, which no real network has."""
_REGISTRY = f"{NETWORK}.1"
_LATENCY = "400ms"
"""How long a packet may wait in the queue of a slow link; one that would wait longer is dropped."""


@dataclass(frozen=True, slots=True)
class Link:
    """The PORT by which a host at ADDRESS is joined to the bridge in the network BETWEEN."""

    between: Namespaces
    host: Namespaces
    port: str
    address: str

    def cut(self) -> None:
        self._between("ip", "link", "set", self.port, "down")

    def join(self) -> None:
        self._between("ip", "link", "set", self.port, "up")

    def mend(self) -> None:
        """Undo `cut`, `slow`, `lose` and `hold`."""
        self.join()
        self._between("iptables", "--flush")
        for spaces, device in ((self.between, self.port), (self.host, "eth0")):
            subprocess.run(spaces.argv("tc", "qdisc", "del", "dev", device, "root"), capture_output=True, check=False)

    def slow(self, rate: str) -> None:
        """Let RATE through, as tc(8) writes it, in each direction."""
        for spaces, device in ((self.between, self.port), (self.host, "eth0")):
            bucket = ["tbf", "rate", rate, "burst", "16kb", "latency", _LATENCY]
            spaces.done("tc", "qdisc", "replace", "dev", device, "root", *bucket)

    def lose(self, share: float) -> None:
        """Drop this SHARE of the packets that come from the host, and of those that go there."""
        for chain, side in (("INPUT", "--source"), ("OUTPUT", "--destination")):
            rule = ["-m", "statistic", "--mode", "random", "--probability", f"{share}", "-j", "DROP"]
            self._between("iptables", "-A", chain, side, self.address, *rule)

    def hold(self, request: str) -> Callable[[], bool]:
        """Drop each packet of the host that has the text REQUEST; return what says whether there was one."""
        match = ["-m", "string", "--algo", "bm", "--string", request, "-j", "DROP"]
        self._between("iptables", "-A", "INPUT", "--source", self.address, "-p", "tcp", *match)
        return self._dropped

    def _dropped(self) -> bool:
        listing = run(self.between.argv("iptables", "-nvxL", "INPUT"), os.environ).out
        return any(line.split()[0] != "0" for line in listing.splitlines() if " DROP " in line)

    def crossed(self) -> int:
        """Return how many bytes have come from the host or gone there, heads of packets and all."""
        printed = run(self.between.argv("ip", "-s", "-j", "link", "show", "dev", self.port), os.environ).out
        (shown,) = json.loads(printed)
        return int(shown["stats64"]["rx"]["bytes"]) + int(shown["stats64"]["tx"]["bytes"])

    def _between(self, *command: str) -> None:
        self.between.done(*command)


@dataclass(frozen=True, slots=True)
class Host:
    """One of the two: its ENGINE, and its LINK to the registry."""

    engine: PrivateEngine
    link: Link

    @property
    def env(self) -> dict[str, str]:
        """The environment of its user, who has a HOME of their own."""
        own = self.engine.home.parent / "user"
        own.mkdir(exist_ok=True)
        return {**self.engine.env, "HOME": str(own)}

    def argv(self, project: Path, *words: str) -> list[str]:
        """Return the command that runs nvllm on PROJECT; a signal that kills it kills what it runs."""
        command = [sys.executable, "-m", "nvllm", "--project", str(project), *words, "--json"]
        return self.engine.spaces.argv("setpriv", "--pdeathsig", "KILL", *command)

    def nvllm(self, project: Path, *words: str, env: Mapping[str, str] | None = None) -> Done:
        """Run nvllm on PROJECT, with ENV on top of the environment of its user."""
        return run(self.argv(project, *words), {**self.env, **(env or {})})

    def begin(self, project: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start what `nvllm` runs."""
        argv, nothing = self.argv(project, *words), subprocess.DEVNULL
        return subprocess.Popen(
            argv, env={**self.env, **(env or {})}, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, text=True
        )


@dataclass(frozen=True, slots=True)
class TwoHosts:
    """Hosts A and B, and the REGISTRY between them."""

    a: Host
    b: Host
    registry: RealRegistry

    @property
    def repository(self) -> str:
        return f"http://{self.registry.name}"


def joined(between: Namespaces, engine: PrivateEngine, port: str, number: int) -> Link:
    """Join the network of ENGINE to the bridge in BETWEEN by PORT."""
    address = f"{NETWORK}.{number}"
    peer = ["peer", "name", "eth0", "netns", str(engine.spaces.first)]
    # The network of BETWEEN alone: a process id means another process behind its own process ids.
    entered = ["nsenter", "--target", str(between.first), "--net"]
    subprocess.run([*entered, "ip", "link", "add", "name", port, "type", "veth", *peer], check=True)
    between.done("ip", "link", "set", port, "master", "bridge", "up")
    engine.spaces.done("ip", "address", "add", f"{address}/24", "dev", "eth0")
    engine.spaces.done("ip", "link", "set", "eth0", "up")
    return Link(between, engine.spaces, port, address)


def _reaches(host: Host, registry: RealRegistry) -> bool:
    url = f"http://{registry.host}:{registry.port}/v2/"
    return run(host.engine.spaces.argv("curl", "--silent", "--fail", url), os.environ).code == 0


@contextlib.contextmanager
def two_hosts(directory: Path) -> Iterator[TwoHosts]:
    """Yield two hosts and a registry with its storage in DIRECTORY; all of it ends with the context."""
    with contextlib.ExitStack() as stack:
        between = Namespaces()
        stack.callback(between.end)
        between.done("ip", "link", "add", "bridge", "type", "bridge")
        between.done("ip", "address", "add", f"{_REGISTRY}/24", "dev", "bridge")
        between.done("ip", "link", "set", "bridge", "up")
        hosts = []
        for number, port in ((11, "to-a"), (12, "to-b")):
            engine = stack.enter_context(private_engines.engine(Kind(f"host-{port[-1]}", None)))
            hosts.append(Host(engine, joined(between, engine, port, number)))
        registry = RealRegistry(directory, between.argv, host=_REGISTRY)
        registry.start()
        stack.callback(registry.kill)
        for host in hosts:
            until(functools.partial(_reaches, host, registry), "a host reaches the registry")
        yield TwoHosts(hosts[0], hosts[1], registry)
