"""The facts of the host: memory, disks, ports, interfaces, GPUs and the container toolkit.

Only this module reads ``/proc``, with `runtime/machine.py` for the processors, and runs ``nvidia-smi`` and
``nvidia-ctk``. It decides nothing: `checks.py` does, from the frozen :class:`HostFacts` alone. The facts of the Docker
engine are declared here too, but read by `engine/engine.py`; the caller adds them with `dataclasses.replace`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nvllm.core import proc
from nvllm.core.spec import LOOPBACK
from nvllm.runtime import machine

TREE_LABEL = "nvllm.tree"
"""The label with the hash of the blessed cache that is mounted in a container."""

INSTANCE_LABEL = "nvllm.instance"
"""The label of every container that nvllm starts; its value is the container's own name."""

RUN_LABEL = "nvllm.run"
"""The label with the run directory that a container was started from: no other state directory has its locks."""

HOME_LABEL = "nvllm.home"
"""The label with the id of the home whose nvllm started a container; those of an older nvllm have none."""

TASK_LABEL = "nvllm.task"
"""The label of every container that a worker starts, or its probe: the task that it was sent."""


Product = Literal["Docker", "Podman"]
ImageStore = Literal["containerd", "its own"]


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Free bytes for this user at a path; equal FILESYSTEM numbers share them."""

    free: int
    filesystem: int


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP port that a program listens on. PID is None if this user may not see it."""

    port: int
    pid: int | None = None
    program: str | None = None
    address: str = LOOPBACK
    """Where it listens: 127.0.0.1 also stands for every address of the host."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi names it."""

    index: int
    uuid: str
    name: str
    capability: str
    driver: str

    @property
    def unified(self) -> bool:
        """Whether the GPU has no memory of its own, and uses that of the host."""
        return _UNIFIED.search(self.name) is not None


_UNIFIED = re.compile(r"\b(GB10|Thor|Orin)\b")
"""NVIDIA's chips whose GPU has no memory of its own, as nvidia-smi names them (docs/fleet.md)."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors: what code for them is compiled by, and how many there are. What cannot be read is empty, or 0.

    MACHINE is the kernel's word (``x86_64``); KIND is vendor, family and model, which ``-march=native`` tunes for;
    FLAGS are the instruction sets and features that every processor has. COUNT is that of processors online, CORES of
    physical cores among them, NODES of NUMA nodes: an engine on the CPU makes its threads of these three.
    """

    machine: str
    kind: str
    flags: tuple[str, ...]
    count: int
    cores: int
    nodes: int


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine says of itself. BRIDGE_INTERFACE is what its network ``bridge`` is built on.

    STORE is whose image store it has: containerd's, or its own, as Docker's classic one.
    """

    version: str
    api_version: str
    storage_driver: str
    rootless: bool
    bridge_interface: str | None
    product: Product = "Docker"
    store: ImageStore = "its own"


@dataclass(frozen=True, slots=True)
class EngineProblem:
    """Why no engine can be used at ENDPOINT.

    Access is denied, nothing is there, there is no valid answer, the answer is an error, which TEXT is then, or
    Docker's context in use leads to none.
    """

    kind: Literal["denied", "absent", "silent", "error", "context"]
    endpoint: str
    text: str


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image that the engine holds."""

    id: str
    diff_ids: tuple[str, ...]
    tags: tuple[str, ...]
    size: int
    platform: str = ""
    digests: tuple[str, ...] = ()
    """What registries call it: ``name@sha256:...``."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """How a container ended: EXIT_CODE is None while it runs. ADDRESS is its own on the engine's network, if any."""

    exit_code: int | None
    out_of_memory: bool
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a container has used so far: bytes at most, None where the kernel does not say it, and processor seconds."""

    peak_memory: int | None
    processor: float


@dataclass(frozen=True, slots=True)
class MemoryInUse:
    """Bytes that a container uses now, and of them those of its processes themselves; None where nobody says it."""

    container: int | None
    engine: int | None


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image with its layers from the lowest on, each by its chain id and with the bytes that the engine counts."""

    facts: ImageFacts
    layers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ContainerFact:
    """A container that the engine knows; NAME without the leading slash of the engine's own form."""

    name: str
    labels: Mapping[str, str]
    running: bool
    id: str

    @property
    def by_nvllm(self) -> bool:
        """Whether nvllm started it: then its label has its name.

        A container that was renamed counts as foreign: a user has decided so, and nvllm leaves it alone.
        """
        return self.labels.get(INSTANCE_LABEL) == self.name

    def of_another(self, home: str) -> bool:
        """Return whether the nvllm of another home than the one with the id HOME started it: it alone may end it."""
        return self.labels.get(HOME_LABEL, home) != home

    @property
    def stop(self) -> str:
        """The command by which its own home ends it."""
        state = Path(self.labels.get(RUN_LABEL, "/")).parent.parent
        variable = {"state": "NVLLM_HOME", "nvllm": "XDG_STATE_HOME"}.get(state.name)
        if variable is None:
            return shlex.join(["docker", "stop", self.name])
        return f"{variable}={shlex.quote(str(state.parent))} {shlex.join(['nvllm', 'stop', self.name])}"


@dataclass(frozen=True, slots=True)
class LockFacts:
    """Whether hard locks work in DIRECTORY; PROBLEM says why not. `locks.probe` makes it."""

    directory: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The host at one moment. MEM_AVAILABLE is bytes, None if the kernel did not say.

    It is the kernel's figure on unified memory too: a GPU's own leaves out what the kernel could reclaim, and counts
    what other programs are about to use.
    """

    mem_available: int | None
    cpu: Cpu
    disks: Mapping[str, DiskFacts]
    listeners: tuple[Listener, ...]
    interfaces: frozenset[str]
    gpus: tuple[Gpu, ...]
    gpu_problem: str | None
    toolkit: str | None
    toolkit_problem: str | None
    uid: int
    gid: int
    engine: EngineFacts | None = None
    engine_problem: EngineProblem | None = None
    containers: tuple[ContainerFact, ...] = ()
    locks: LockFacts | None = None
    mem_total: int = 0
    """Bytes; 0 if the kernel did not say."""
    machine_id: str = ""
    """What identifies this installation, see `machine_id`; empty if nothing does."""
    home: str = ""
    """The id of the home that asks."""


_PROC, _SYS = Path("/proc"), Path("/sys")


def probe(paths_for_disk: Iterable[Path], proc_root: Path = _PROC, patience: float = 10.0) -> HostFacts:
    """Return what this host is, with the free space at each of PATHS_FOR_DISK, which need not exist yet.

    Each program may take PATIENCE seconds. What cannot be read becomes a fact (None, or the text of a problem), never
    an exception, because all other facts must still be checked.
    """
    gpus, gpu_problem = nvidia_gpus(patience)
    toolkit, toolkit_problem = container_toolkit(patience)
    sizes = memory(proc_root)
    return HostFacts(
        mem_available=sizes.get("MemAvailable"),
        cpu=cpu(proc_root),
        disks={str(path): disk(path) for path in paths_for_disk},
        listeners=listeners(proc_root),
        # Not /sys/class/net: a mounted sysfs shows the network namespace in which it was mounted.
        interfaces=frozenset(name for _, name in socket.if_nameindex()),
        gpus=gpus,
        gpu_problem=gpu_problem,
        toolkit=toolkit,
        toolkit_problem=toolkit_problem,
        uid=os.geteuid(),
        gid=os.getegid(),
        mem_total=sizes.get("MemTotal", 0),
        machine_id=machine_id(),
    )


def memory(proc_root: Path = _PROC) -> Mapping[str, int]:
    """Return every size in the kernel's meminfo by its name, in bytes; empty if it cannot be read."""
    try:
        text = (proc_root / "meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    # What the kernel calls kB are 1024 bytes.
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def machine_id() -> str:
    """Return the id of this installation (machine-id(5)), else the name of the host.

    Not the boot id: what a gate has found of the hardware holds after a reboot too.
    """
    try:
        installation = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        installation = ""
    return installation or os.uname().nodename


def cpu(proc_root: Path, sys_root: Path = _SYS) -> Cpu:
    """Return what the kernel says of the processors."""
    return Cpu(**machine.processor(str(proc_root), str(sys_root)))


def disk(path: Path) -> DiskFacts:
    """Return what is free for this user where PATH lies, or will lie once its parents are made."""
    existing = path.absolute()
    while not os.path.exists(existing):  # which, unlike Path.exists, is no error behind a closed directory
        existing = existing.parent
    space = os.statvfs(existing)
    # f_bavail, not f_bfree: the reserve is root's, and a build must not depend on who runs it.
    return DiskFacts(space.f_bavail * space.f_frsize, existing.stat().st_dev)


def _listening_at(encoded: str) -> str:
    """Return the address that the kernel's hexadecimal ENCODED is: 127.0.0.1 if it takes what is sent to the loopback.

    The kernel prints the address as 32-bit words in the machine's byte order.
    """
    words = [int(encoded[at : at + 8], 16) for at in range(0, len(encoded), 8)]
    address = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    by_loopback = address.is_unspecified or address in (ipaddress.ip_address(LOOPBACK), ipaddress.ip_address("::1"))
    return LOOPBACK if by_loopback else str(address)


def _listening_sockets(proc_root: Path) -> dict[str, tuple[int, str]]:
    """Return socket inode to port and address of every TCP socket in state LISTEN."""
    listening: dict[str, tuple[int, str]] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc_root / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6 has no tcp6
        for line in lines:
            if " 0A " not in line:  # TCP_LISTEN; a busy host has thousands of lines in other states
                continue
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == "0A":
                listening[fields[9]] = (int(port, 16), _listening_at(address))
    return listening


def _socket_holders(proc_root: Path, inodes: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return socket inode to (pid, program) for those of INODES whose holder this user may look at."""
    links = {f"socket:[{inode}]": inode for inode in inodes}
    holders: dict[str, tuple[int, str]] = {}
    for pid in sorted(int(name) for name in os.listdir(proc_root) if name.isdigit()):
        # A process may end at any moment, a descriptor may be closed, and both may be another user's. Text and not
        # paths: a busy host has tens of thousands of descriptors.
        process = f"{proc_root}/{pid}"
        try:
            descriptors = os.listdir(f"{process}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                inode = links.get(os.readlink(f"{process}/fd/{descriptor}"))
                if inode is not None and inode not in holders:
                    program = Path(process, "comm").read_text(encoding="utf-8", errors="replace").strip()
                    holders[inode] = (pid, program)
    return holders


def listeners(proc_root: Path) -> tuple[Listener, ...]:
    """Return who listens on TCP ports, by port and address."""
    sockets = _listening_sockets(proc_root)
    holders = _socket_holders(proc_root, sockets) if sockets else {}
    by_place: dict[tuple[int, str], Listener] = {}
    for inode, (port, address) in sockets.items():
        pid, program = holders.get(inode, (None, None))
        # Several sockets may listen on one port (SO_REUSEPORT): the one whose holder is known names it.
        if pid is not None or (port, address) not in by_place:
            by_place[port, address] = Listener(port, pid, program, address)
    return tuple(by_place[place] for place in sorted(by_place))


def _first_line(text: str) -> str:
    """Return the first line of TEXT that is not empty, cut to 200 characters for a message."""
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "")


def _answer(program: str, arguments: tuple[str, ...], patience: float) -> tuple[str | None, str | None]:
    """Run PROGRAM and return (its output, None), (None, what went wrong), or (None, None) if it is not installed."""
    path = shutil.which(program)
    if path is None:
        return None, None
    try:
        done = proc.run((path, *arguments), env=proc.environment({}), timeout=patience)
    except subprocess.TimeoutExpired:
        return None, f"{program} did not answer within {patience:g} s"
    except OSError as error:
        return None, f"{program} cannot be run: {error.strerror}"
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:  # nvidia-smi writes its errors to standard output
        message = _first_line(output) or _first_line(done.stderr.decode(errors="replace")) or "nothing"
        return None, f"{program} ended with status {done.returncode} and said: {message}"
    return output, None


_GPU_FIELDS = ("index", "uuid", "name", "compute_cap", "driver_version")


def nvidia_gpus(patience: float) -> tuple[tuple[Gpu, ...], str | None]:
    """Return the GPUs that nvidia-smi shows, and what went wrong. No nvidia-smi is no GPU, and no problem."""
    query = (f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits")
    output, problem = _answer("nvidia-smi", query, patience)
    if output is None:
        return (), problem
    gpus: list[Gpu] = []
    for line in output.splitlines():
        row = [field.strip() for field in line.split(",")]
        if len(row) != len(_GPU_FIELDS) or not row[0].isdecimal():
            return (), f"nvidia-smi printed no list of GPUs: {_first_line(output)}"
        index, uuid, name, capability, driver = row
        gpus.append(Gpu(int(index), uuid, name, capability, driver))
    return tuple(gpus), None


def container_toolkit(patience: float) -> tuple[str | None, str | None]:
    """Return the NVIDIA container toolkit's version as it says it, and what went wrong; (None, None): not there."""
    output, problem = _answer("nvidia-ctk", ("--version",), patience)
    if output is None:
        return None, problem
    version = re.search(r"\bversion:?\s+(\S+)", output)
    if version is None:
        return None, f"nvidia-ctk --version printed no version: {_first_line(output)}"
    return version.group(1), None
