"""One container as a value: what the engine creates for a launch plan, and what exports write for other supervisors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nvllm.core.plan import LaunchPlan, Mount, Scratch, ulimits
from nvllm.host.facts import Product


@dataclass(frozen=True, slots=True)
class Container:
    """A container: no capability, no new privileges, no swap, no restart by the engine, only read-only bind MOUNTS.

    Sizes in bytes. The first word of COMMAND is the entry point. USER is ``uid:gid``. ULIMITS are hard and soft limits.
    PORT is published on ADDRESSES, unless HOST_NETWORK. GPUS are uuids.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    user: str
    memory: int
    shared_memory: int
    pids: int
    ulimits: Mapping[str, int]
    addresses: tuple[str, ...]
    port: int
    mounts: tuple[Mount, ...]
    scratch: tuple[Scratch, ...]
    gpus: tuple[str, ...]
    read_only: bool
    filtered: bool
    """Whether the engine's filter of system calls is on."""
    host_ipc: bool
    host_network: bool

    @property
    def uid(self) -> str:
        return self.user.partition(":")[0]

    @property
    def gid(self) -> str:
        return self.user.partition(":")[2]


def of_plan(plan: LaunchPlan, labels: Mapping[str, str]) -> Container:
    """Return the container of PLAN with LABELS: the whole hardening, less the plan's waivers."""
    waived = {waiver.name for waiver in plan.waivers}
    return Container(
        name=plan.instance,
        command=plan.command.words,
        environment=plan.environment,
        labels=labels,
        user=plan.user,
        memory=plan.limits.memory,
        shared_memory=plan.limits.shared_memory,
        pids=plan.limits.pids,
        ulimits=ulimits(plan),
        addresses=plan.addresses,
        port=plan.port,
        mounts=plan.mounts,
        scratch=plan.scratch,
        gpus=tuple(gpu.uuid for gpu in plan.gpus),
        read_only="writable-root" not in waived,
        filtered="no-seccomp" not in waived,
        host_ipc="host-ipc" in waived,
        host_network="host-network" in waived,
    )


def tmpfs_options(container: Container, scratch: Scratch, product: Product) -> str:
    """Return the mount options of the tmpfs of SCRATCH, which only the user of CONTAINER can read, for PRODUCT."""
    # exec: torch.compile loads what it compiles from here.
    common = f"rw,exec,nosuid,nodev,size={scratch.size},mode=0700"
    if product == "Podman":
        # Podman supports no uid and gid; U chowns it to the container's user. Without notmpcopyup it begins with a copy
        # of what lies below it, such as the compiled files of a blessed cache.
        return f"{common},U,notmpcopyup"
    return f"{common},uid={container.uid},gid={container.gid}"
