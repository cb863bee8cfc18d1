"""The container engine: what it is, the images that it holds, and the containers that it runs.

Docker from 20.10 on with either of its image stores, or Podman from 5.0 on behind the same API. Nothing here asks
which store it is: an image has two ids, and is known by whichever the engine reports. A launch plan is carried out
without adding anything to it, and only containers with nvllm's label are touched. Only this module imports docker.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import docker
import requests
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount

from nvllm.core.plan import CACHE, HOME, LaunchPlan, Workbench
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.host import engines
from nvllm.host.facts import (
    INSTANCE_LABEL,
    ContainerFact,
    ContainerState,
    EngineFacts,
    EngineProblem,
    ImageFacts,
    ImageStore,
    Product,
    Usage,
)
from nvllm.image import archive, oci
from nvllm.image.oci import Descriptor, Image, Lower

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT = 60
_LOAD_TIMEOUT = 1800
CONFLICT = 409
"""What the engine answers when a removal is under way already, or when what is to go is in use."""

FAILURES = (docker.errors.DockerException, requests.exceptions.RequestException)
"""All that the client raises: the engine's own refusals, and what becomes of a connection."""

OURS_ALONE: Mapping[str, Any] = {"use_config_proxy": False}
"""Of every container: nothing of the client's own configuration, whose proxies may hold passwords, goes into it."""

_DENIED = ("permission denied", "PermissionError")
_ABSENT = ("No such file", "FileNotFoundError", "Connection refused", "ConnectionRefused")

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


def endpoint() -> str:
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


def asks(method: Callable[P, T]) -> Callable[P, T]:
    """Turn what becomes of METHOD's questions into refusals, but for the answers that METHOD itself expects.

    NV510: the engine fell silent. NV515: it answered, with an error; the client calls that a failed request too.
    """

    @functools.wraps(method)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except docker.errors.APIError as error:
            raise Refused([refused(error)]) from error
        except requests.exceptions.RequestException as error:
            raise Refused([engines.unreachable(EngineProblem("silent", endpoint(), str(error)[:300]))]) from error

    return asked


def refused(error: docker.errors.APIError) -> Refusal:
    """Return the refusal that says what the engine answered in ERROR, in its own words."""
    found = f"{error.status_code}: {error.explanation or error}"[:400]
    return Refusal(
        "NV515", "docker engine", "an answer without an error", found, "cure what the engine says, and try again"
    )


def patient() -> contextlib.closing[docker.DockerClient]:
    """Return a client for what takes longer than any other request: the engine answers when all is unpacked."""
    return contextlib.closing(docker.from_env(timeout=_LOAD_TIMEOUT))


def connect() -> Engine | EngineProblem:
    """Return the engine that the environment names (DOCKER_HOST), or why there is none."""
    try:
        client = docker.from_env(timeout=TIMEOUT)
        client.ping()
    except (*FAILURES, ValueError) as error:
        text = str(error)
        kind: Literal["denied", "absent", "silent"] = "absent" if any(word in text for word in _ABSENT) else "silent"
        if any(word in text for word in _DENIED):
            kind = "denied"
        return EngineProblem(kind, endpoint(), text.splitlines()[0][:300] if text else type(error).__name__)
    return Engine(client)


def require() -> Engine:
    """Return the engine. Raises Refused NV510 if there is none; `doctor` has the same words."""
    found = connect()
    if isinstance(found, EngineProblem):
        raise Refused([engines.unreachable(found)])
    return found


class Engine:
    """An engine that answered. Every method may raise Refused NV510 if it stops answering, and NV515 if it refuses."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client

    @functools.cached_property
    def _version(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._client.version()
        return found

    @property
    def product(self) -> Product:
        """Whose engine it is: Podman behind Docker's API does not take all that Docker takes."""
        names = [str(one.get("Name")).lower() for one in self._version.get("Components") or ()]
        return "Podman" if any("podman" in name for name in names) else "Docker"

    @asks
    def facts(self) -> EngineFacts:
        """Return what the engine says of itself."""
        info, version = self._client.info(), self._version
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
            product=self.product,
            store=_store(info),
        )

    # Images

    @asks
    def image(self, reference: str) -> ImageFacts | None:
        """Return the image that REFERENCE (a tag or an id) names, or None."""
        try:
            return _image_facts(self._client.api.inspect_image(reference))
        except docker.errors.NotFound:
            return None

    @asks
    def images(self) -> tuple[ImageFacts, ...]:
        """Return every image that nvllm built."""
        found = self._client.api.images(filters={"label": "nvllm.build-hash"})
        return tuple(facts for one in found if (facts := self.image(one["Id"])) is not None)

    def load(self, wanted: Image, tags: Sequence[str], progress: Progress) -> None:
        """Load WANTED under TAGS, sending only layers that the engine does not hold yet.

        Raises Refused NV304 if the engine then holds something else, or not all of it; no name was touched then. So it
        comes under a name of its own first: a load takes a name from what has it, which not every store keeps then.
        """
        own = f"nvllm:loading-{secrets.token_hex(6)}"
        shared = max((oci.common(wanted.diff_ids, other.diff_ids) for other in self.images()), default=0)
        below = len(wanted.below)
        try:
            said, found = self._tried(wanted, own, max(shared, below), progress)
            if found is None and shared > below:
                said, found = self._tried(wanted, own, below, progress)
            if found is None:
                where, expected = f"docker engine: {tags[0]}", " or ".join(wanted.ids)
                raise refuse("NV304", where, expected, said[:400], "nvllm build again")
            for tag in tags:
                self.tag(found.id, tag)
        finally:
            self.remove_image(own)

    def _tried(self, wanted: Image, tag: str, skip: int, progress: Progress) -> tuple[str, ImageFacts | None]:
        """Send WANTED without its SKIP lowest layers, to be called TAG; return it as it is there, or what is wrong.

        What the engine says to that proves nothing: those that lack a layer may call the load a success. Then Docker 28
        lists no layers, and Docker 26 lists all of them, and only fails when a container is to be made.
        """
        said, found = self._send(wanted, tag, skip, progress), self.image(tag)
        if found is None:
            return said or "no image", None
        if found.id not in wanted.ids:
            return said or found.id, None
        if found.diff_ids != wanted.diff_ids:
            return said or f"{found.id}, with {len(found.diff_ids)} of {len(wanted.diff_ids)} layers", None
        if unusable := self._unusable(found.id):
            return said or f"{found.id}, of which no container can be made: {unusable}", None
        return "", found

    @asks
    def _unusable(self, image_id: str) -> str:
        """Return why no container can be made of the image IMAGE_ID, or nothing if one can."""
        try:
            with self._unstarted(image_id):
                return ""
        except docker.errors.APIError as error:
            return str(error.explanation)

    def _send(self, wanted: Image, tag: str, skip: int, progress: Progress) -> str:
        """Send WANTED without its SKIP lowest layers, to be called TAG; return what the engine says against it."""
        total = sum(layer.size for layer in archive.sent(wanted, skip))

        def counted() -> Iterator[bytes]:
            with progress.task("load into the engine", total, "B") as task:
                for chunk in archive.stream(wanted, tag, skip):
                    yield chunk
                    task.advance(len(chunk))

        try:
            with patient() as engine:
                told = engine.api.load_image(counted(), quiet=True)
                return "; ".join(str(line["error"]) for line in told if "error" in line)
        except FAILURES as error:
            return str(error)

    def pull(self, reference: str, platform: str, progress: Progress) -> str:
        """Bring the image REFERENCE of a registry for PLATFORM; return what the engine says if that fails."""
        try:
            with patient() as engine, progress.task(f"pull {reference}", None, "files"):
                told = engine.api.pull(reference, platform=platform, stream=True, decode=True)
                return "; ".join(str(line["error"]) for line in told if "error" in line)
        except FAILURES as error:
            return str(error)

    def layers(self, reference: str, found: ImageFacts) -> tuple[Lower, ...]:
        """Return the layers of the image REFERENCE of a registry, FOUND here, and the blobs that hold them, if any.

        A containerd image store keeps what the registry packed, and an image built on it there has to name that.
        """
        # A store that keeps what was pulled calls the image by that; Podman wants every layer in a manifest of OCI.
        wanted = found.id == reference.rpartition("@")[2] or self.product == "Podman"
        blobs = self._blobs(reference, found.diff_ids) if wanted else None
        return tuple(map(Lower, found.diff_ids, blobs or [None] * len(found.diff_ids)))

    @asks
    def _blobs(self, reference: str, diff_ids: Sequence[str]) -> tuple[Descriptor, ...] | None:
        """Return the blobs of the image REFERENCE that has the layers DIFF_IDS, from the archive that the engine saves.

        No other answer of the engine names them. The archive is read once, and only its documents are kept.
        """
        with patient() as engine:
            stream = engine.api.get_image(reference)
            return archive.blobs(stream, diff_ids)

    @asks
    def tag(self, image_id: str, tag: str) -> None:
        """Let TAG name the image IMAGE_ID."""
        repository, _, name = tag.partition(":")
        self._client.api.tag(image_id, repository, name)

    @asks
    def remove_image(self, reference: str) -> bool:
        """Take the tag or image REFERENCE away, and say whether it is gone: one that a container uses stays."""
        try:
            self._client.api.remove_image(reference)
        except docker.errors.NotFound:
            return True
        except docker.errors.APIError as error:
            if error.status_code != CONFLICT:
                raise
            return False
        return True

    @asks
    def read_file(self, image_id: str, path: str) -> bytes | None:
        """Return the regular file PATH of the image IMAGE_ID without starting anything, or None if there is none."""
        with self._unstarted(image_id) as container:
            try:
                stream, _ = self._client.api.get_archive(container, path)
            except docker.errors.NotFound:
                return None
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
                member = tar.next()
                stored = tar.extractfile(member) if member is not None and member.isreg() else None
                return stored.read() if stored is not None else None

    @contextlib.contextmanager
    def _unstarted(self, image_id: str) -> Iterator[str]:
        """Yield the id of a container of IMAGE_ID that is never started; it is gone afterwards."""
        labels = {"nvllm.reader": image_id}
        container = str(self._client.api.create_container(image_id, ["-"], labels=labels, **OURS_ALONE)["Id"])
        try:
            yield container
        finally:
            self._client.api.remove_container(container, force=True)

    # Containers

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


def _image_facts(found: Mapping[str, Any]) -> ImageFacts:
    """Return what an engine's answer about an image, FOUND, says."""
    return ImageFacts(
        id=found["Id"],
        diff_ids=tuple(found["RootFS"].get("Layers") or ()),
        tags=tuple(one.removeprefix(archive.HUB) for one in found.get("RepoTags") or ()),
        labels=(found.get("Config") or {}).get("Labels") or {},
        size=int(found.get("Size") or 0),
        platform=f"{found['Os']}/{found['Architecture']}",
        digests=tuple(found.get("RepoDigests") or ()),
    )


def _store(info: Mapping[str, Any]) -> ImageStore:
    """Return where an engine that says INFO of itself keeps images."""
    status = [str(word) for pair in info.get("DriverStatus") or () for word in pair]
    return "containerd" if any("io.containerd.snapshotter" in word for word in status) else "its own"


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
        "ports": {"8000/tcp": ("127.0.0.1", plan.port)},
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
