"""Containers of an engine: launch plans carried out without adding anything to them.

It touches only containers that carry nvllm's label.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import docker
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from nvllm.core.plan import CACHE, CONTAINER_PORT, HOME, LaunchPlan, Workbench
from nvllm.core.refusal import Refused, refuse
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact, ContainerState, Product, Usage
from nvllm.image.daemon import CONFLICT, FAILURES, OURS_ALONE, Daemon, asks

_ENDED = frozenset({"exited", "dead", "removing", "stopped"})
"""The statuses of a container that does not run any more; the last is Podman's."""

GOING = 5.0
"""Seconds in which a container is gone that somebody else removes."""

_CDI_GPU = "nvidia.com/gpu"
"""The kind that NVIDIA's toolkit gives GPUs in the container device interface; it knows them by uuid too."""

_LIST = """import os, sys
for top in sys.argv[1:]:
    for place, _, names in os.walk(top):
        for name in names:
            print(f"{place}/{name}")"""


class Containers(Daemon):
    """What an engine runs. Every method may raise Refused NV510 if it stops answering, and NV515 if it refuses."""

    @asks
    def containers(self) -> tuple[ContainerFact, ...]:
        """Return every container that the engine knows, ours and others'."""
        return tuple(
            ContainerFact(
                name=(one.get("Names") or ["/"])[0].removeprefix("/"),
                labels=one.get("Labels") or {},
                running=one.get("State") == "running",
                id=one["Id"],
            )
            for one in self._client.api.containers(all=True)
        )

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        """Create and start the container of PLAN, and return its id.

        A stopped container of ours by that name is replaced. Raises Refused NV703 with the engine's words if the
        container cannot be started; nothing is left behind then.
        """
        return self._start(plan, options(plan, labels, self.product))

    def start_workbench(self, bench: Workbench, labels: Mapping[str, str]) -> str:
        """Create and start the container of BENCH as `start` does that of a plan, its directory writable in it."""
        wanted = options(bench.plan, labels, self.product)
        wanted["mounts"].append(Mount(CACHE, bench.directory, type="bind"))
        return self._start(bench.plan, wanted)

    def _start(self, plan: LaunchPlan, wanted: Mapping[str, Any]) -> str:
        self._discard_stopped(plan.instance)
        container: Container | None = None
        try:
            container = self._client.containers.create(image=self._own_name(plan), **wanted)
            container.start()
        except FAILURES as error:
            if container is not None:
                container.remove(force=True)
            where = f"docker engine: container {plan.instance}"
            cure = f"nvllm doctor {plan.image} --profile {plan.profile}"
            raise refuse("NV703", where, "a container that starts", str(error)[:400], cure) from error
        return str(container.id)

    def _discard_stopped(self, name: str) -> None:
        for fact in self.containers():
            if fact.name == name and fact.labels.get(INSTANCE_LABEL) == name and not fact.running:
                self._client.api.remove_container(fact.id)

    @asks
    def state(self, container_id: str) -> ContainerState | None:
        """Return the state of the container CONTAINER_ID, or None if it is gone."""
        try:
            found = self._client.api.inspect_container(container_id)
        except docker.errors.NotFound:
            return None
        state = found["State"]
        running = state["Status"] not in _ENDED
        return ContainerState(
            id=found["Id"],
            name=found["Name"].removeprefix("/"),
            status=state["Status"],
            exit_code=None if running else state["ExitCode"],
            out_of_memory=bool(state["OOMKilled"]),
            labels=found["Config"]["Labels"] or {},
            started=state["StartedAt"],
        )

    @asks
    def usage(self, container_id: str) -> Usage:
        """Return what the container has used up to now.

        With control groups of version 1 the engine knows its peak; with version 2 the container reads it of itself.
        """
        found = self._client.api.stats(container_id, stream=False, one_shot=True)
        peak = found["memory_stats"].get("max_usage") or self._said(container_id, ["cat", "/sys/fs/cgroup/memory.peak"])
        return Usage(int(peak) if peak is not None else None, found["cpu_stats"]["cpu_usage"]["total_usage"] / 10**9)

    @asks
    def scratch_files(self, container_id: str, interpreter: str) -> list[str] | None:
        """Return the paths of the files in the container's scratch, by the Python INTERPRETER in it, or None."""
        said = self._said(container_id, [interpreter, "-I", "-c", _LIST, "/tmp", HOME])  # noqa: S108
        return said.splitlines() if said is not None else None

    def _said(self, container_id: str, argv: list[str]) -> str | None:
        status, said = self._client.containers.get(container_id).exec_run(argv)
        return said.decode("utf-8", "replace") if status == 0 and isinstance(said, bytes) else None

    def logs(self, container_id: str, *, follow: bool, tail: int | Literal["all"] = "all") -> Iterator[bytes]:
        """Yield the container's output, with the engine's time in front of each line, as it comes."""
        # An engine that falls silent, or a container that goes, ends the log; `state` says which it was.
        with contextlib.suppress(*FAILURES):
            stream = self._client.api.logs(
                container_id, stream=True, follow=follow, timestamps=True, stdout=True, stderr=True, tail=tail
            )
            yield from stream

    @asks
    def stop(self, container_id: str, patience: int) -> None:
        """Ask the container to end, and kill it after PATIENCE seconds; then remove it. Gone already is well."""
        # An engine that cannot ask it, because it ends or is being removed, can still remove it.
        with contextlib.suppress(docker.errors.APIError):
            self._client.api.stop(container_id, timeout=patience)
        self.remove(container_id)

    @asks
    def kill(self, container_id: str) -> None:
        """End the container at once: a worker that hangs ignores a request to end."""
        with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):
            self._client.api.kill(container_id)

    @asks
    def remove(self, container_id: str) -> None:
        """Remove the container, running or not. Gone, or being removed by somebody else, is well."""
        try:
            self._client.api.remove_container(container_id, force=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            # What somebody else removes already is a conflict to Docker, and an error of its own to Podman.
            if error.status_code != CONFLICT and not self._goes(container_id):
                raise

    def _goes(self, container_id: str) -> bool:
        """Wait for moments until the container is gone, and say whether it is."""
        until = time.monotonic() + GOING
        while time.monotonic() < until:
            with contextlib.suppress(Refused):
                if self.state(container_id) is None:
                    return True
            time.sleep(0.1)
        return False

    def _own_name(self, plan: LaunchPlan) -> str:
        """Return the one of the image's two ids that this engine knows it by."""
        for one in plan.image_ids:
            with contextlib.suppress(docker.errors.NotFound):
                self._client.api.inspect_image(one)
                return one
        return plan.image_id


def options(plan: LaunchPlan, labels: Mapping[str, str], product: Product) -> dict[str, Any]:
    """Return PLAN as an engine of PRODUCT takes it. The hardening is here in full; a waiver changes the plan."""
    options: dict[str, Any] = {
        "name": plan.instance,
        "entrypoint": [plan.command[0]],
        "command": list(plan.command[1:]),
        "environment": dict(plan.environment),
        "user": plan.user,
        "labels": dict(labels),
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "ipc_mode": "private",
        "shm_size": plan.limits.shared_memory,
        "mem_limit": plan.limits.memory,
        "memswap_limit": plan.limits.memory,
        "pids_limit": plan.limits.pids,
        "ports": {f"{CONTAINER_PORT}/tcp": ("127.0.0.1", plan.port)},
        "tmpfs": {scratch.target: _tmpfs(plan, scratch.size, product) for scratch in plan.scratch},
        "mounts": [Mount(mount.target, mount.source, type="bind", read_only=True) for mount in plan.mounts],
        "restart_policy": {"Name": "no"},
        "log_config": {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "2"}},
        "detach": True,
        **OURS_ALONE,
    }
    waived = {waiver.name for waiver in plan.waivers}
    if "host-ipc" in waived:
        options["ipc_mode"] = "host"
        del options["shm_size"]
    if "host-network" in waived:
        options["network_mode"] = "host"
        del options["ports"]
    if "writable-root" in waived:
        options["read_only"] = False
    if plan.gpu is not None:
        options["device_requests"] = [_gpus(plan, product)]
    return options


def _tmpfs(plan: LaunchPlan, size: int, product: Product) -> str:
    """Return the mount options of a scratch of SIZE bytes, for the user of PLAN alone."""
    # exec: torch.compile loads what it compiles from here.
    common = f"rw,exec,nosuid,nodev,size={size},mode=0700"
    if product == "Podman":  # which takes no uid and gid; U gives it to the container's user
        return f"{common},U"
    uid, _, gid = plan.user.partition(":")
    return f"{common},uid={uid},gid={gid}"


def _gpus(plan: LaunchPlan, product: Product) -> DeviceRequest:
    uuids = [gpu.uuid for gpu in plan.gpus]
    if product == "Podman":  # which drops a request by capabilities without a word, and starts without a GPU
        return DeviceRequest(driver="cdi", device_ids=[f"{_CDI_GPU}={uuid}" for uuid in uuids])
    return DeviceRequest(device_ids=uuids, capabilities=[["gpu"]])
