"""The containers of the engine: starting them, looking into them, ending them.

A container gets exactly what its launch plan says. Only containers with nvllm's label are changed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import docker
from docker.types import DeviceRequest, Mount, Ulimit

from nvllm.core.plan import CACHE, CONTAINER_PORT, HOME, RUN_DIRECTORY, LaunchPlan, Workbench
from nvllm.core.refusal import Refused, refuse
from nvllm.engine import answers, container
from nvllm.engine.client import (
    CONFLICT,
    FAILURES,
    MOST,
    NO_CLIENT_PROXIES,
    OTHER_FORM,
    Connection,
    engine_errors,
    patient_client,
)
from nvllm.engine.container import Container
from nvllm.host.facts import HOME_LABEL, ContainerFact, ContainerState, MemoryInUse, Product, Usage

_ENDED = frozenset({"exited", "dead", "removing", "stopped"})
"""The statuses of a container that no longer runs; the last is Podman's."""

REMOVAL_TIMEOUT = 5.0
"""Seconds to wait for a container that another process removes."""

_POLL = 0.2
"""Seconds between two looks at a container that is to end, or to be gone."""

_CDI_GPU = "nvidia.com/gpu"
"""The kind of NVIDIA's GPUs in the container device interface (CDI), which names them by uuid too."""

_LIST = """import os, sys
for top in sys.argv[1:]:
    for directory, _, names in os.walk(top):
        for name in names:
            print(f"{directory}/{name}")"""


class Containers(Connection):
    """The containers that an engine runs."""

    @engine_errors
    def containers(self) -> tuple[ContainerFact, ...]:
        """Return every container of the engine, also those that nvllm did not create."""
        return answers.containers(self._client.api.containers(all=True))

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        """Create and start the container of PLAN, and return its id.

        A stopped container of this home with that name is replaced. Raises Refused NV703 with the engine's error if the
        container cannot be started; it is removed then.
        """
        creating = container.of_plan(plan, {**labels, **self._labels})
        return self._start(plan, options(creating, self.product))

    def start_workbench(self, bench: Workbench, labels: Mapping[str, str]) -> str:
        """Create and start the container of BENCH as `start` does that of a plan, its directory writable in it."""
        creating = options(container.of_plan(bench.plan, {**labels, **self._labels}), self.product)
        creating["mounts"].append(Mount(CACHE, bench.directory, type="bind"))
        return self._start(bench.plan, creating)

    def _start(self, plan: LaunchPlan, creating: Mapping[str, Any]) -> str:
        self._discard_stopped(plan.instance)
        try:
            created = self._client.containers.create(image=self._own_name(plan), **creating)
            try:
                created.start()
            except (*FAILURES, *OTHER_FORM):
                with contextlib.suppress(*FAILURES, *OTHER_FORM):  # why it did not start matters; the next start tries
                    created.remove(force=True)
                raise
        except (*FAILURES, *OTHER_FORM) as error:
            where = f"docker engine: container {plan.instance}"
            cure = f"nvllm doctor {plan.image} --profile {plan.profile}"
            raise refuse("NV703", where, "a container that starts", answers.shortened(str(error)), cure) from error
        return str(created.id)

    @engine_errors
    def run_to_end(
        self, image_id: str, creating: Container, patience: float, writable: Mapping[str, str] | None = None
    ) -> str:
        """Run the container CREATING of the image IMAGE_ID, without network, remove it, and return what it wrote.

        It may write into the directories WRITABLE, path in the container to path on this host. It is killed after
        PATIENCE seconds, and after an interrupt. Raises Refused NV515 if it cannot be started.
        """
        with_options = options(creating, self.product)
        del with_options["ports"]  # without a network there is nothing to publish
        with_options["mounts"] += [Mount(target, path, type="bind") for target, path in (writable or {}).items()]
        self._discard_stopped(creating.name)
        created = self._client.containers.create(image=image_id, network_mode="none", **with_options)
        try:
            created.start()
            until = time.monotonic() + patience
            while time.monotonic() < until and (state := self.state(str(created.id))) is not None:
                if state.exit_code is not None:
                    break
                time.sleep(_POLL)
            return answers.chunks(created.logs(stream=True, follow=False), MOST).decode("utf-8", "replace")
        finally:
            created.remove(force=True)

    def _discard_stopped(self, name: str) -> None:
        for fact in self.containers():
            own = fact.by_nvllm and not fact.of_another(self._labels.get(HOME_LABEL, ""))
            if fact.name == name and own and not fact.running:
                self._client.api.remove_container(fact.id)

    @engine_errors
    def state(self, container_id: str) -> ContainerState | None:
        """Return the state of the container CONTAINER_ID, or None if it is gone."""
        try:
            return answers.state(self._client.api.inspect_container(container_id), _ENDED)
        except docker.errors.NotFound:
            return None

    @engine_errors
    def usage(self, container_id: str) -> Usage:
        """Return the container's peak memory in bytes, if it is known, and its CPU time in seconds so far.

        With cgroups v1 the engine reports the peak; with v2 a command in the container reads it.
        """
        # Without one_shot the engine waits a second for another sample.
        statistics = self._client.api.stats(container_id, stream=False, one_shot=True)
        peak = answers.memory(statistics) or self._output(container_id, ["cat", "/sys/fs/cgroup/memory.peak"])
        return Usage(int(peak) if peak is not None else None, answers.processor(statistics))

    @engine_errors
    def memory_in_use(self, container_id: str) -> MemoryInUse:
        """Return the memory that the container uses now."""
        return answers.memory_in_use(self._client.api.stats(container_id, stream=False, one_shot=True))

    @engine_errors
    def scratch_files(self, container_id: str, interpreter: str) -> list[str] | None:
        """Return the paths of the files in the container's scratch, listed by its Python INTERPRETER, or None."""
        return self._listed(container_id, interpreter, "/tmp", HOME)  # noqa: S108

    @engine_errors
    def run_files(self, container_id: str, interpreter: str) -> list[str] | None:
        """Return the paths of the files in the container's run directory, listed as `scratch_files` does, or None."""
        return self._listed(container_id, interpreter, RUN_DIRECTORY)

    @engine_errors
    def run_in(self, container_id: str, argv: Sequence[str]) -> tuple[int, str]:
        """Run ARGV, which may take hours, in the container. Return its exit status and what it wrote."""
        with patient_client() as engine:
            status, output = engine.containers.get(container_id).exec_run(list(argv))
            written = output if isinstance(output, bytes) else b"".join(output)
        return -1 if status is None else status, written.decode("utf-8", "replace")

    @engine_errors
    def read_in(self, container_id: str, path: str) -> str | None:
        """Return the text of the file PATH in the running container, or None."""
        return self._output(container_id, ["cat", path])

    def _listed(self, container_id: str, interpreter: str, *directories: str) -> list[str] | None:
        # -I: whatever PYTHONPATH the plan sets for vLLM, this program imports the standard library alone.
        output = self._output(container_id, [interpreter, "-I", "-c", _LIST, *directories])
        return output.splitlines() if output is not None else None

    def _output(self, container_id: str, argv: list[str]) -> str | None:
        api = self._client.api
        command = api.exec_create(container_id, argv)["Id"]
        output = answers.chunks(api.exec_start(command, stream=True), MOST)
        return output.decode("utf-8", "replace") if api.exec_inspect(command)["ExitCode"] == 0 else None

    def logs(self, container_id: str, *, follow: bool, tail: int | Literal["all"] = "all") -> Iterator[bytes]:
        """Yield the container's output, with the engine's time in front of each line, as it comes."""
        # The log ends when the engine stops answering or the container is removed; `state` tells which.
        with contextlib.suppress(*FAILURES):
            stream = self._client.api.logs(
                container_id, stream=True, follow=follow, timestamps=True, stdout=True, stderr=True, tail=tail
            )
            yield from stream

    @engine_errors
    def stop(self, container_id: str, patience: int) -> None:
        """Stop the container, kill it after PATIENCE seconds, then remove it. It may be gone already."""
        # A container that is ending or being removed cannot be stopped, but it can still be removed.
        with contextlib.suppress(docker.errors.APIError):
            self._client.api.stop(container_id, timeout=patience)
        self.remove(container_id)

    @engine_errors
    def kill(self, container_id: str) -> None:
        """Kill the container: a worker that hangs ignores SIGTERM."""
        with contextlib.suppress(docker.errors.APIError):  # 409 of one that has ended, 404 of one that is gone
            self._client.api.kill(container_id)

    @engine_errors
    def remove(self, container_id: str) -> None:
        """Remove the container, running or not. It may be gone, or another process may be removing it."""
        try:
            self._client.api.remove_container(container_id, force=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            # For a container that another process removes, Docker answers 409 and Podman another error.
            if error.status_code != CONFLICT and not self._wait_until_gone(container_id):
                raise

    def _wait_until_gone(self, container_id: str) -> bool:
        """Return whether the container is gone within `REMOVAL_TIMEOUT`."""
        until = time.monotonic() + REMOVAL_TIMEOUT
        while time.monotonic() < until:
            with contextlib.suppress(Refused):
                if self.state(container_id) is None:
                    return True
            time.sleep(_POLL)
        return False

    def _own_name(self, plan: LaunchPlan) -> str:
        """Return the one of the image's two ids that this engine uses."""
        for image_id in plan.image_ids:
            with contextlib.suppress(docker.errors.NotFound):
                self._client.api.inspect_image(image_id)
                return image_id
        return plan.image_id


def options(creating: Container, product: Product) -> dict[str, Any]:
    """Return the options for CREATING a container on PRODUCT."""
    options: dict[str, Any] = {
        "name": creating.name,
        "entrypoint": [creating.command[0]],
        "command": list(creating.command[1:]),
        "environment": dict(creating.environment),
        "user": creating.user,
        "labels": dict(creating.labels),
        "read_only": creating.read_only,
        # vLLM runs without capabilities and set-uid programs; the gate refuses to start it with them (NV701).
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", *([] if creating.filtered else ["seccomp=unconfined"])],
        "mem_limit": creating.memory,
        # Memory and swap together: an engine ends at its memory limit, and does not swap (docs/export.md).
        "memswap_limit": creating.memory,
        "pids_limit": creating.pids,
        "ulimits": [Ulimit(name=name, soft=limit, hard=limit) for name, limit in creating.ulimits.items()],
        "tmpfs": {scratch.target: container.tmpfs_options(creating, scratch, product) for scratch in creating.scratch},
        # No "volumes": of a source that is missing Docker would make an empty directory there, and mount that.
        "mounts": [Mount(mount.target, mount.source, type="bind", read_only=True) for mount in creating.mounts],
        # The supervisor starts a dead engine again itself, after every check (docs/serving.md).
        "restart_policy": {"Name": "no"},
        # Docker limits no log by itself. What it rotates away is in the supervisor's own log, which has a limit too.
        "log_config": {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "2"}},
        "detach": True,
        **NO_CLIENT_PROXIES,
    }
    if creating.host_ipc:
        options["ipc_mode"] = "host"
    else:
        options |= {"ipc_mode": "private", "shm_size": creating.shared_memory}
    if creating.host_network:
        options["network_mode"] = "host"
    else:
        options["ports"] = {f"{CONTAINER_PORT}/tcp": [(address, creating.port) for address in creating.addresses]}
    if creating.gpus:
        options["device_requests"] = [_gpus(creating.gpus, product)]
    return options


def _gpus(uuids: Sequence[str], product: Product) -> DeviceRequest:
    if product == "Podman":  # Podman silently ignores a request by capabilities
        return DeviceRequest(driver="cdi", device_ids=[f"{_CDI_GPU}={uuid}" for uuid in uuids])
    return DeviceRequest(device_ids=list(uuids), capabilities=[["gpu"]])
