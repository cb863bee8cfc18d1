"""The Docker engine: the only module that imports docker.

It loads images, and carries out launch plans without adding anything to them. It touches only containers that
carry nvllm's label.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import docker
import requests
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from nvllm import checks, image
from nvllm.host import (
    INSTANCE_LABEL,
    ContainerFact,
    ContainerState,
    EngineFacts,
    EngineProblem,
    ImageFacts,
    Usage,
    image_facts,
)
from nvllm.image import Image
from nvllm.plan import CACHE, HOME, LaunchPlan, Workbench
from nvllm.progress import Progress
from nvllm.refusal import Refusal, Refused

P = ParamSpec("P")
T = TypeVar("T")

_TIMEOUT = 60
_CONFLICT = 409
"""What the engine answers when a removal is under way already, or when what is to go is in use."""
_LOAD_TIMEOUT = 1800
_OURS_ALONE: Mapping[str, Any] = {"use_config_proxy": False}
"""Of every container: nothing of the client's own configuration, whose proxies may hold passwords, goes into it."""
_LIST = """import os, sys
for top in sys.argv[1:]:
    for place, _, names in os.walk(top):
        for name in names:
            print(f"{place}/{name}")"""
_DENIED = ("permission denied", "PermissionError")
_ABSENT = ("No such file", "FileNotFoundError", "Connection refused", "ConnectionRefused")


def _endpoint() -> str:
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


def connect() -> Engine | EngineProblem:
    """Return the engine that the environment names (DOCKER_HOST), or why there is none."""
    try:
        client = docker.from_env(timeout=_TIMEOUT)
        client.ping()
    except (docker.errors.DockerException, requests.exceptions.RequestException, ValueError) as error:
        text = str(error)
        kind: Literal["denied", "absent", "silent"] = "absent" if any(word in text for word in _ABSENT) else "silent"
        if any(word in text for word in _DENIED):
            kind = "denied"
        return EngineProblem(kind, _endpoint(), text.splitlines()[0][:300] if text else type(error).__name__)
    return Engine(client)


def _asks(method: Callable[P, T]) -> Callable[P, T]:
    """Turn silence of the engine, while METHOD asks it, into a refusal. What it answers is METHOD's own affair."""

    @functools.wraps(method)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except requests.exceptions.RequestException as error:
            problem = EngineProblem("silent", _endpoint(), str(error)[:300])
            raise Refused([checks.unreachable(problem)]) from error

    return asked


class Engine:
    """An engine that answered. Every method may raise Refused NV510 if it stops answering."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    @_asks
    def facts(self) -> EngineFacts:
        """Return what the engine says of itself."""
        info, version = self._client.info(), self._client.version()
        bridge: str | None = None
        with contextlib.suppress(docker.errors.NotFound):
            options = self._client.api.inspect_network("bridge").get("Options") or {}
            bridge = options.get("com.docker.network.bridge.name")
        return EngineFacts(
            version=str(version["Version"]),
            api_version=str(version["ApiVersion"]),
            storage_driver=str(info["Driver"]),
            rootless=any("rootless" in option for option in info.get("SecurityOptions") or ()),
            bridge_interface=bridge,
        )

    # Images

    @_asks
    def image(self, reference: str) -> ImageFacts | None:
        """Return the image that REFERENCE (a tag or an id) names, or None."""
        try:
            return image_facts(self._client.api.inspect_image(reference))
        except docker.errors.ImageNotFound:
            return None

    @_asks
    def images(self) -> tuple[ImageFacts, ...]:
        """Return every image that nvllm built."""
        found = self._client.api.images(filters={"label": "nvllm.build-hash"})
        return tuple(facts for one in found if (facts := self.image(one["Id"])) is not None)

    def load(self, wanted: Image, tags: Sequence[str], progress: Progress) -> None:
        """Load WANTED under TAGS, sending only layers that the engine does not hold yet.

        Raises Refused NV304 if the engine then holds something else under that name.
        """
        below = len(wanted.below)
        shared = max((image.common(wanted.diff_ids, other.diff_ids) for other in self.images()), default=0)
        refused = self._send(wanted, tags, max(shared, below), progress)
        if refused and shared > below:
            # An image store that wants every layer in every archive, whatever it holds already.
            refused = self._send(wanted, tags, below, progress)
        found = self.image(tags[0])
        if refused or found is None or found.id != wanted.id:
            said = refused or (found.id if found else "no image")
            raise Refused([Refusal("NV304", f"docker engine: {tags[0]}", wanted.id, said, "nvllm build again")])

    def _send(self, wanted: Image, tags: Sequence[str], skip: int, progress: Progress) -> str:
        total = sum(layer.size for layer in wanted.layers[skip - len(wanted.below) :])

        def counted() -> Iterator[bytes]:
            with progress.task("load into the engine", total, "B") as task:
                for chunk in image.archive(wanted, tags, skip):
                    yield chunk
                    task.advance(len(chunk))

        try:
            with _patient() as engine:
                told = engine.api.load_image(counted(), quiet=True)
                return "; ".join(str(line["error"]) for line in told if "error" in line)
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            return str(error)

    def pull(self, reference: str, platform: str, progress: Progress) -> str:
        """Bring the image REFERENCE of a registry for PLATFORM; return what the engine says if that fails."""
        try:
            with _patient() as engine, progress.task(f"pull {reference}", None, "files"):
                told = engine.api.pull(reference, platform=platform, stream=True, decode=True)
                return "; ".join(str(line["error"]) for line in told if "error" in line)
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            return str(error)

    @_asks
    def tag(self, image_id: str, tag: str) -> None:
        """Let TAG name the image IMAGE_ID."""
        repository, _, name = tag.partition(":")
        self._client.api.tag(image_id, repository, name)

    @_asks
    def remove_image(self, reference: str) -> bool:
        """Take the tag or image REFERENCE away, and say whether it went: one that a container uses stays."""
        try:
            self._client.api.remove_image(reference)
        except docker.errors.APIError as error:
            if error.status_code != _CONFLICT:
                raise
            return False
        return True

    @_asks
    def read_file(self, image_id: str, path: str) -> bytes | None:
        """Return the regular file PATH of the image IMAGE_ID without starting anything, or None if there is none."""
        created = self._client.api.create_container(image_id, ["-"], labels={"nvllm.reader": image_id}, **_OURS_ALONE)
        try:
            stream, _ = self._client.api.get_archive(created["Id"], path)
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
                member = tar.next()
                stored = tar.extractfile(member) if member is not None and member.isreg() else None
                return stored.read() if stored is not None else None
        except docker.errors.NotFound:
            return None
        finally:
            self._client.api.remove_container(created["Id"], force=True)

    # Containers

    @_asks
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
        return self._start(plan, _options(plan, labels))

    def start_workbench(self, bench: Workbench, labels: Mapping[str, str]) -> str:
        """Create and start the container of BENCH as `start` does that of a plan, its directory writable in it."""
        options = _options(bench.plan, labels)
        options["mounts"].append(Mount(CACHE, bench.directory, type="bind"))
        return self._start(bench.plan, options)

    def _start(self, plan: LaunchPlan, options: Mapping[str, Any]) -> str:
        self._discard_stopped(plan.instance)
        container: Container | None = None
        try:
            container = self._client.containers.create(**options)
            container.start()
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            if container is not None:
                container.remove(force=True)
            where = f"docker engine: container {plan.instance}"
            cure = f"nvllm doctor {plan.image} --profile {plan.profile}"
            raise Refused([Refusal("NV703", where, "a container that starts", str(error)[:400], cure)]) from error
        return str(container.id)

    def _discard_stopped(self, name: str) -> None:
        for fact in self.containers():
            if fact.name == name and fact.labels.get(INSTANCE_LABEL) == name and not fact.running:
                self._client.api.remove_container(fact.id)

    @_asks
    def state(self, container_id: str) -> ContainerState | None:
        """Return the state of the container CONTAINER_ID, or None if it is gone."""
        try:
            found = self._client.api.inspect_container(container_id)
        except docker.errors.NotFound:
            return None
        state = found["State"]
        running = state["Status"] in {"running", "created", "restarting", "paused"}
        return ContainerState(
            id=found["Id"],
            name=found["Name"].removeprefix("/"),
            status=state["Status"],
            exit_code=None if running else state["ExitCode"],
            out_of_memory=bool(state["OOMKilled"]),
            labels=found["Config"]["Labels"] or {},
            image_id=found["Image"],
            started=state["StartedAt"],
        )

    @_asks
    def usage(self, container_id: str) -> Usage:
        """Return what the container has used up to now.

        With control groups of version 1 the engine knows its peak; with version 2 the container reads it of itself.
        """
        found = self._client.api.stats(container_id, stream=False, one_shot=True)
        peak = found["memory_stats"].get("max_usage") or self._said(container_id, ["cat", "/sys/fs/cgroup/memory.peak"])
        return Usage(int(peak) if peak is not None else None, found["cpu_stats"]["cpu_usage"]["total_usage"] / 10**9)

    @_asks
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
        with contextlib.suppress(requests.exceptions.RequestException, docker.errors.DockerException):
            stream = self._client.api.logs(
                container_id, stream=True, follow=follow, timestamps=True, stdout=True, stderr=True, tail=tail
            )
            yield from stream

    @_asks
    def stop(self, container_id: str, patience: int) -> None:
        """Ask the container to end, and kill it after PATIENCE seconds; then remove it. Gone already is well."""
        with contextlib.suppress(docker.errors.NotFound):
            self._client.api.stop(container_id, timeout=patience)
        self.remove(container_id)

    @_asks
    def kill(self, container_id: str) -> None:
        """End the container at once: a worker that hangs ignores a request to end."""
        with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):
            self._client.api.kill(container_id)

    @_asks
    def remove(self, container_id: str) -> None:
        """Remove the container, running or not. Gone, or being removed by somebody else, is well."""
        try:
            self._client.api.remove_container(container_id, force=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if error.status_code != _CONFLICT:
                raise

    @_asks
    def run_tool(self, image_id: str, command: Sequence[str], output: str, user: str, timeout: int) -> tuple[int, str]:
        """Run COMMAND in a container of IMAGE_ID with no network and OUTPUT writable at /out.

        Returns the exit status and what it printed. The container is gone afterwards.
        """
        container = self._client.containers.create(
            image_id,
            entrypoint=[command[0]],
            command=list(command[1:]),
            user=user,
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            environment={"HOME": "/tmp", "USER": "nvllm"},  # noqa: S108 - inside the container
            tmpfs={"/tmp": "rw,exec,mode=1777,size=1g"},  # noqa: S108
            mounts=[Mount("/out", output, type="bind")],
            labels={"nvllm.tool": "1"},
            **_OURS_ALONE,
        )
        try:
            container.start()
            status = container.wait(timeout=timeout)
            return int(status["StatusCode"]), container.logs().decode("utf-8", "replace")
        finally:
            container.remove(force=True)


def _patient() -> contextlib.closing[docker.DockerClient]:
    """Return a client for what takes longer than any other request: the engine answers when all is unpacked."""
    return contextlib.closing(docker.from_env(timeout=_LOAD_TIMEOUT))


def require() -> Engine:
    """Return the engine. Raises Refused NV510 if there is none; `checks` has the same words for `doctor`."""
    found = connect()
    if isinstance(found, EngineProblem):
        raise Refused([checks.unreachable(found)])
    return found


def _options(plan: LaunchPlan, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the plan as the engine takes it. The hardening is here in full; a waiver changes the plan."""
    options: dict[str, Any] = {
        "image": plan.image_id,
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
        "ports": {"8000/tcp": ("127.0.0.1", plan.port)},
        "tmpfs": {scratch.target: plan.tmpfs(scratch.size) for scratch in plan.scratch},
        "mounts": [Mount(mount.target, mount.source, type="bind", read_only=True) for mount in plan.mounts],
        "restart_policy": {"Name": "no"},
        "log_config": {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "2"}},
        "detach": True,
        **_OURS_ALONE,
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
        options["device_requests"] = [DeviceRequest(device_ids=[gpu.uuid for gpu in plan.gpus], capabilities=[["gpu"]])]
    return options
