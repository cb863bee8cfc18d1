"""The container engine: what it is, the images that it holds, and the containers that it runs.

Docker from 20.10 on with either of its image stores, or Podman from 5.0 on behind the same API. An image has two ids;
which of them an engine uses depends on its store. A container gets exactly what its launch plan says, and only
containers with nvllm's label are changed. Only this module imports docker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import docker
import requests
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount, Ulimit

from nvllm.core.plan import CACHE, CONTAINER_PORT, HOME, RUN_DIRECTORY, LaunchPlan, Workbench, ulimits
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refused, refuse
from nvllm.engine import answers, endpoint
from nvllm.engine.endpoint import Endpoint
from nvllm.host import engines
from nvllm.host.facts import (
    ContainerFact,
    ContainerState,
    EngineFacts,
    EngineProblem,
    ImageFacts,
    Product,
    StoredImage,
    Usage,
)
from nvllm.layers import archive, oci
from nvllm.layers.oci import Descriptor, Image, Lower

P = ParamSpec("P")
T = TypeVar("T")

_TIMEOUT = 60
_LOAD_TIMEOUT = 1800
_CONFLICT = 409
"""The HTTP status for a removal that is under way already, and for an image that is in use."""

_FAILURES = (docker.errors.DockerException, requests.exceptions.RequestException)
"""Every exception of the client: errors that the engine answers, and failed connections."""

_NO_CLIENT_PROXIES: Mapping[str, Any] = {"use_config_proxy": False}
"""For every container: the proxies of the client's configuration, which may hold passwords, are not copied into it."""

_DENIED = ("permission denied", "PermissionError")
_ABSENT = ("No such file", "FileNotFoundError", "Connection refused", "ConnectionRefused")

_ENDED = frozenset({"exited", "dead", "removing", "stopped"})
"""The statuses of a container that no longer runs; the last is Podman's."""

REMOVAL_TIMEOUT = 5.0
"""Seconds to wait for a container that another process removes."""

_FULL = re.compile("no space left on device|disk quota exceeded", re.IGNORECASE)

_CDI_GPU = "nvidia.com/gpu"
"""The kind of NVIDIA's GPUs in the container device interface (CDI), which names them by uuid too."""

_REFERENCE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@-]|/(?=[A-Za-z0-9]))*")
"""What names an image, also by an id; no part of it is ``..``."""

_OTHER_FORM = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    tarfile.TarError,
)
"""What this module and the client raise for an answer of another form than the API's; the client checks no form."""

_MOST = 64 << 20
"""Most bytes of a file in an image, and of what a command in a container prints."""

_LIST = """import os, sys
for top in sys.argv[1:]:
    for place, _, names in os.walk(top):
        for name in names:
            print(f"{place}/{name}")"""


def _endpoint() -> str:
    """Return where the engine listens, for messages."""
    found = endpoint.find(os.environ)
    return found.endpoint if isinstance(found, EngineProblem) else found.url


def _client(timeout: int) -> docker.DockerClient:
    """Return a client for the engine of the context in use. Raises Refused NV510 if there is no such context."""
    found = endpoint.find(os.environ)
    if isinstance(found, EngineProblem):
        raise Refused([engines.unreachable(found)])
    if not found.stored:
        return docker.from_env(timeout=timeout)
    return docker.DockerClient(base_url=found.url, tls=_certificates(found), timeout=timeout)


def _certificates(found: Endpoint) -> docker.tls.TLSConfig | bool:
    """Return how to prove who is who at FOUND; False if it needs no proof, as a socket."""
    if found.certificates is None:
        return False
    ca, cert, key = (found.certificates / f"{name}.pem" for name in ("ca", "cert", "key"))
    return docker.tls.TLSConfig(
        client_cert=(str(cert), str(key)) if cert.is_file() and key.is_file() else None,
        ca_cert=str(ca) if ca.is_file() else None,
        verify=found.verified,
    )


def _engine_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Turn the exceptions of Docker's client that METHOD does not catch into refusals.

    NV510: the engine stopped answering. NV515: it answered with an error, or in another form than the API has.
    """

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except docker.errors.APIError as error:
            raise Refused([engines.unreachable(_said(error))]) from error
        except requests.exceptions.RequestException as error:
            raise Refused([engines.unreachable(EngineProblem("silent", _endpoint(), str(error)[:300]))]) from error
        except _OTHER_FORM as error:
            raise Refused([engines.unreachable(_other_form(error))]) from error

    return wrapped


def _said(error: docker.errors.APIError) -> EngineProblem:
    """Return what the engine says in ERROR, an answer of it."""
    return EngineProblem("error", _endpoint(), f"{error.status_code}: {error.explanation or error}"[:400])


def _other_form(error: Exception) -> EngineProblem:
    """Return what is wrong with an answer that raised ERROR."""
    return EngineProblem("error", _endpoint(), f"an answer of another form: {type(error).__name__}: {error}"[:400])


def _patient_client() -> contextlib.closing[docker.DockerClient]:
    """Return a client with a long timeout: the engine answers a load or a pull only when all layers are unpacked."""
    return contextlib.closing(_client(_LOAD_TIMEOUT))


def connect() -> Engine | EngineProblem:
    """Return the engine of DOCKER_HOST or of Docker's context in use, or why it cannot be reached.

    Raises Refused NV109 if Docker's configuration, which its client opens, is no regular file.
    """
    found = endpoint.find(os.environ)
    if isinstance(found, EngineProblem):
        return found
    try:
        client = _client(_TIMEOUT)
        client.ping()
    except RecursionError as error:
        return _other_form(error)
    except (*_FAILURES, *_OTHER_FORM) as error:
        answer = error.__cause__ if isinstance(error.__cause__, docker.errors.APIError) else error
        if isinstance(answer, docker.errors.APIError):
            return _said(answer)
        text = str(error)
        kind: Literal["denied", "absent", "silent"] = "absent" if any(word in text for word in _ABSENT) else "silent"
        if any(word in text for word in _DENIED):
            kind = "denied"
        return EngineProblem(kind, _endpoint(), text.splitlines()[0][:300] if text else type(error).__name__)
    return Engine(client)


def require() -> Engine:
    """Return the engine. Raises Refused NV510, with the text that `doctor` shows, if there is none."""
    found = connect()
    if isinstance(found, EngineProblem):
        raise Refused([engines.unreachable(found)])
    return found


class Engine:
    """An engine that answered. Every method may raise Refused NV510 if it stops answering, and NV515 if it refuses."""

    def __init__(self, client: docker.DockerClient, labels: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._labels = labels or {}

    def labelling(self, labels: Mapping[str, str]) -> Engine:
        """Return this engine; the containers that it starts from there also have LABELS."""
        return Engine(self._client, {**self._labels, **labels})

    @functools.cached_property
    def _version(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._client.version()
        return found

    @property
    @_engine_errors
    def product(self) -> Product:
        """Docker, or Podman behind Docker's API, which does not support all that Docker supports."""
        return answers.product(self._version)

    @_engine_errors
    def facts(self) -> EngineFacts:
        """Return the engine's version, storage driver, image store and network bridge."""
        bridge: Mapping[str, Any] = {}
        with contextlib.suppress(docker.errors.NotFound):
            bridge = self._client.api.inspect_network("bridge")
        return answers.engine(self._client.info(), self._version, bridge)

    # Images

    @_engine_errors
    def image(self, reference: str) -> ImageFacts | None:
        """Return the image that REFERENCE (a tag or an id) names, or None."""
        if not _REFERENCE.fullmatch(reference):  # it becomes a part of the request's path
            return None
        try:
            return answers.image(self._client.api.inspect_image(reference))
        except docker.errors.NotFound:
            return None

    @_engine_errors
    def images(self) -> tuple[ImageFacts, ...]:
        """Return every image that nvllm built."""
        found = self._client.api.images(filters={"label": "nvllm.build-hash"})
        return tuple(facts for one in answers.ids(found) if (facts := self.image(one)) is not None)

    @_engine_errors
    def stored(self) -> tuple[StoredImage, ...]:
        """Return every image of the engine with the sizes of its layers, also those that nvllm did not build."""
        api, stored = self._client.api, []
        for one in answers.ids(api.images(all=True)):
            with contextlib.suppress(docker.errors.NotFound):  # it has just gone
                stored.append(answers.stored(api.inspect_image(one), api.history(one)))
        return tuple(stored)

    def load(self, wanted: Image, tags: Sequence[str], progress: Progress) -> None:
        """Load WANTED under TAGS, sending only layers that the engine does not hold yet.

        Raises Refused NV304 if the engine then holds another image or an incomplete one, NV506 if its disk is full;
        TAGS are unchanged then. The image is loaded under a temporary name first: a load moves a name away from the
        image that had it, and some stores then delete that image.
        """
        now, held = time.time(), self.images()
        own = archive.temporary(now)
        for tag in archive.left((tag for one in held for tag in one.tags), now - 2 * _LOAD_TIMEOUT):
            self.remove_image(tag)
        shared = max((oci.common(wanted.diff_ids, other.diff_ids) for other in held), default=0)
        below = len(wanted.below)
        try:
            error, found = self._send_and_check(wanted, own, max(shared, below), progress)
            if found is None and shared > below:
                error, found = self._send_and_check(wanted, own, below, progress)
            if found is None:
                where, cure = f"docker engine: {tags[0]}", f"nvllm build {tags[-1].partition(':')[2]}"
                if _FULL.search(error):
                    room = f"room on the engine's disk for {archive.size(wanted, below)} bytes"
                    raise refuse("NV506", where, room, error[:400], f"nvllm gc && {cure}")
                raise refuse("NV304", where, " or ".join(wanted.ids), error[:400], cure)
            for tag in tags:
                self.tag(found.id, tag)
        finally:
            self.remove_image(own)

    def _send_and_check(self, wanted: Image, tag: str, skip: int, progress: Progress) -> tuple[str, ImageFacts | None]:
        """Send WANTED without its SKIP lowest layers under the name TAG; return what is wrong, or the loaded image.

        The engine's answer proves nothing: an engine that lacks a layer may still report success. Docker 28 then lists
        no layers; Docker 26 lists all of them, and fails only when a container is created.
        """
        error, found = self._send(wanted, tag, skip, progress), self.image(tag)
        if found is None:
            return error or "no image", None
        if found.id not in wanted.ids:
            return error or found.id, None
        if found.diff_ids != wanted.diff_ids:
            return error or f"{found.id}, with {len(found.diff_ids)} of {len(wanted.diff_ids)} layers", None
        if unusable := self._unusable(found.id):
            return error or f"{found.id}, from which no container can be created: {unusable}", None
        return "", found

    @_engine_errors
    def _unusable(self, image_id: str) -> str:
        """Return why no container can be created from the image IMAGE_ID, or "" if one can."""
        try:
            with self._unstarted(image_id):
                return ""
        except docker.errors.APIError as error:
            return str(error.explanation)

    def _send(self, wanted: Image, tag: str, skip: int, progress: Progress) -> str:
        """Send WANTED without its SKIP lowest layers under the name TAG; return the engine's error, or ""."""
        total = archive.size(wanted, skip)

        def counted() -> Iterator[bytes]:
            with progress.task("load into the engine", total, "B") as task:
                for chunk in archive.stream(wanted, tag, skip):
                    yield chunk
                    task.advance(len(chunk))

        try:
            with _patient_client() as engine:
                return answers.errors(engine.api.load_image(counted(), quiet=True))
        except (*_FAILURES, *_OTHER_FORM) as error:
            return str(error)

    def pull(self, reference: str, platform: str, progress: Progress) -> str:
        """Pull the image REFERENCE for PLATFORM from its registry; return the engine's error, or ""."""
        try:
            with _patient_client() as engine, progress.task(f"pull {reference}", None, "files"):
                return answers.errors(engine.api.pull(reference, platform=platform, stream=True, decode=True))
        except (*_FAILURES, *_OTHER_FORM) as error:
            return str(error)

    def layers(self, reference: str, found: ImageFacts) -> tuple[Lower, ...]:
        """Return the layers of the pulled image REFERENCE, FOUND in the engine, with the registry's blobs if needed.

        A containerd image store keeps the compressed blobs of the registry, and the manifest of an image built on them
        has to name them.
        """
        # A containerd store uses the manifest's digest as the image id. Podman needs every layer in an OCI manifest.
        wanted = found.id == reference.rpartition("@")[2] or self.product == "Podman"
        blobs = self._blobs(reference, found.diff_ids) if wanted else None
        return tuple(map(Lower, found.diff_ids, blobs or [None] * len(found.diff_ids)))

    @_engine_errors
    def _blobs(self, reference: str, diff_ids: Sequence[str]) -> tuple[Descriptor, ...] | None:
        """Return the blobs of the image REFERENCE with the layers DIFF_IDS, read from the engine's `save` archive.

        No other request of the API names them. The archive is streamed once; only its JSON documents are kept.
        """
        with _patient_client() as engine:
            stream = engine.api.get_image(reference)
            return archive.blobs(stream, diff_ids)

    @_engine_errors
    def description(self, reference: str) -> Mapping[str, Any] | None:
        """Return the image REFERENCE in the form of an OCI configuration, with its id, or None."""
        try:
            found, history = self._client.api.inspect_image(reference), self._client.api.history(reference)
        except docker.errors.NotFound:
            return None
        return answers.description(found, history)

    @_engine_errors
    def save(self, reference: str, path: Path) -> None:
        """Write the archive of the image REFERENCE, as the engine saves it, to PATH."""
        with _patient_client() as engine, path.open("wb") as out:
            for chunk in engine.api.get_image(reference):
                out.write(chunk)

    @_engine_errors
    def tag(self, image_id: str, tag: str) -> None:
        """Give the image IMAGE_ID the name TAG."""
        repository, _, name = tag.partition(":")
        self._client.api.tag(image_id, repository, name)

    @_engine_errors
    def remove_image(self, reference: str) -> bool:
        """Remove the tag or image REFERENCE; return False if a container still uses it, so that it stays."""
        try:
            self._client.api.remove_image(reference)
        except docker.errors.NotFound:
            return True
        except docker.errors.APIError as error:
            if error.status_code != _CONFLICT:
                raise
            return False
        return True

    @_engine_errors
    def read_file(self, image_id: str, path: str) -> bytes | None:
        """Return the content of the regular file PATH in the image IMAGE_ID, or None. Starts no container."""
        with self._unstarted(image_id) as container:
            try:
                stream, _ = self._client.api.get_archive(container, path)
            except docker.errors.NotFound:
                return None
            with contextlib.closing(stream):  # the engine removes no container whose archive is still read
                return answers.file(stream, _MOST)

    @contextlib.contextmanager
    def _unstarted(self, image_id: str) -> Iterator[str]:
        """Yield the id of a container of IMAGE_ID that is created, never started, and removed afterwards."""
        labels = {"nvllm.reader": image_id}
        container = str(self._client.api.create_container(image_id, ["-"], labels=labels, **_NO_CLIENT_PROXIES)["Id"])
        try:
            yield container
        finally:
            self._client.api.remove_container(container, force=True)

    # Containers

    @_engine_errors
    def containers(self) -> tuple[ContainerFact, ...]:
        """Return every container of the engine, also those that nvllm did not create."""
        return answers.containers(self._client.api.containers(all=True))

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        """Create and start the container of PLAN, and return its id.

        A stopped container of nvllm with that name is replaced. Raises Refused NV703 with the engine's error if the
        container cannot be started; it is removed then.
        """
        return self._start(plan, options(plan, {**labels, **self._labels}, self.product))

    def start_workbench(self, bench: Workbench, labels: Mapping[str, str]) -> str:
        """Create and start the container of BENCH as `start` does that of a plan, its directory writable in it."""
        wanted = options(bench.plan, {**labels, **self._labels}, self.product)
        wanted["mounts"].append(Mount(CACHE, bench.directory, type="bind"))
        return self._start(bench.plan, wanted)

    def _start(self, plan: LaunchPlan, wanted: Mapping[str, Any]) -> str:
        self._discard_stopped(plan.instance)
        container: Container | None = None
        try:
            container = self._client.containers.create(image=self._own_name(plan), **wanted)
            container.start()
        except (*_FAILURES, *_OTHER_FORM) as error:
            if container is not None:
                container.remove(force=True)
            where = f"docker engine: container {plan.instance}"
            cure = f"nvllm doctor {plan.image} --profile {plan.profile}"
            raise refuse("NV703", where, "a container that starts", str(error)[:400], cure) from error
        return str(container.id)

    def _discard_stopped(self, name: str) -> None:
        for fact in self.containers():
            if fact.name == name and fact.by_nvllm and not fact.running:
                self._client.api.remove_container(fact.id)

    @_engine_errors
    def state(self, container_id: str) -> ContainerState | None:
        """Return the state of the container CONTAINER_ID, or None if it is gone."""
        try:
            return answers.state(self._client.api.inspect_container(container_id), _ENDED)
        except docker.errors.NotFound:
            return None

    @_engine_errors
    def usage(self, container_id: str) -> Usage:
        """Return the container's peak memory in bytes, if it is known, and its CPU time in seconds so far.

        With cgroups v1 the engine reports the peak; with v2 a command in the container reads it.
        """
        found = self._client.api.stats(container_id, stream=False, one_shot=True)
        peak = answers.memory(found) or self._output(container_id, ["cat", "/sys/fs/cgroup/memory.peak"])
        return Usage(int(peak) if peak is not None else None, answers.processor(found))

    @_engine_errors
    def scratch_files(self, container_id: str, interpreter: str) -> list[str] | None:
        """Return the paths of the files in the container's scratch, listed by its Python INTERPRETER, or None."""
        return self._listed(container_id, interpreter, "/tmp", HOME)  # noqa: S108

    @_engine_errors
    def run_files(self, container_id: str, interpreter: str) -> list[str] | None:
        """Return the paths of the files in the container's run directory, listed as `scratch_files` does, or None."""
        return self._listed(container_id, interpreter, RUN_DIRECTORY)

    @_engine_errors
    def run_in(self, container_id: str, argv: Sequence[str]) -> tuple[int, str]:
        """Run ARGV, which may take hours, in the container. Return its exit status and what it wrote."""
        with _patient_client() as engine:
            status, output = engine.containers.get(container_id).exec_run(list(argv))
            said = output if isinstance(output, bytes) else b"".join(output)
        return -1 if status is None else status, said.decode("utf-8", "replace")

    @_engine_errors
    def read_in(self, container_id: str, path: str) -> str | None:
        """Return the text of the file PATH in the running container, or None."""
        return self._output(container_id, ["cat", path])

    def _listed(self, container_id: str, interpreter: str, *directories: str) -> list[str] | None:
        output = self._output(container_id, [interpreter, "-I", "-c", _LIST, *directories])
        return output.splitlines() if output is not None else None

    def _output(self, container_id: str, argv: list[str]) -> str | None:
        api = self._client.api
        command = api.exec_create(container_id, argv)["Id"]
        output = answers.chunks(api.exec_start(command, stream=True), _MOST)
        return output.decode("utf-8", "replace") if api.exec_inspect(command)["ExitCode"] == 0 else None

    def logs(self, container_id: str, *, follow: bool, tail: int | Literal["all"] = "all") -> Iterator[bytes]:
        """Yield the container's output, with the engine's time in front of each line, as it comes."""
        # The log ends when the engine stops answering or the container is removed; `state` tells which.
        with contextlib.suppress(*_FAILURES):
            stream = self._client.api.logs(
                container_id, stream=True, follow=follow, timestamps=True, stdout=True, stderr=True, tail=tail
            )
            yield from stream

    @_engine_errors
    def stop(self, container_id: str, patience: int) -> None:
        """Stop the container, kill it after PATIENCE seconds, then remove it. It may be gone already."""
        # A container that is ending or being removed cannot be stopped, but it can still be removed.
        with contextlib.suppress(docker.errors.APIError):
            self._client.api.stop(container_id, timeout=patience)
        self.remove(container_id)

    @_engine_errors
    def kill(self, container_id: str) -> None:
        """Kill the container: a worker that hangs ignores SIGTERM."""
        with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):
            self._client.api.kill(container_id)

    @_engine_errors
    def remove(self, container_id: str) -> None:
        """Remove the container, running or not. It may be gone, or another process may be removing it."""
        try:
            self._client.api.remove_container(container_id, force=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            # For a container that another process removes, Docker answers 409 and Podman another error.
            if error.status_code != _CONFLICT and not self._wait_until_gone(container_id):
                raise

    def _wait_until_gone(self, container_id: str) -> bool:
        """Return whether the container is gone within `REMOVAL_TIMEOUT`."""
        until = time.monotonic() + REMOVAL_TIMEOUT
        while time.monotonic() < until:
            with contextlib.suppress(Refused):
                if self.state(container_id) is None:
                    return True
            time.sleep(0.1)
        return False

    def _own_name(self, plan: LaunchPlan) -> str:
        """Return the one of the image's two ids that this engine uses."""
        for one in plan.image_ids:
            with contextlib.suppress(docker.errors.NotFound):
                self._client.api.inspect_image(one)
                return one
        return plan.image_id


def options(plan: LaunchPlan, labels: Mapping[str, str], product: Product) -> dict[str, Any]:
    """Return the options to create the container of PLAN on PRODUCT: the whole hardening, less the plan's waivers."""
    waived = {waiver.name for waiver in plan.waivers}
    options: dict[str, Any] = {
        "name": plan.instance,
        "entrypoint": [plan.command.words[0]],
        "command": list(plan.command.words[1:]),
        "environment": dict(plan.environment),
        "user": plan.user,
        "labels": dict(labels),
        "read_only": "writable-root" not in waived,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", *(["seccomp=unconfined"] if "no-seccomp" in waived else [])],
        "ipc_mode": "private",
        "shm_size": plan.limits.shared_memory,
        "mem_limit": plan.limits.memory,
        "memswap_limit": plan.limits.memory,
        "pids_limit": plan.limits.pids,
        "ulimits": [Ulimit(name=name, soft=limit, hard=limit) for name, limit in ulimits(plan).items()],
        "ports": {f"{CONTAINER_PORT}/tcp": [(address, plan.port) for address in plan.addresses]},
        "tmpfs": {scratch.target: tmpfs(plan, scratch.size, product) for scratch in plan.scratch},
        "mounts": [Mount(mount.target, mount.source, type="bind", read_only=True) for mount in plan.mounts],
        "restart_policy": {"Name": "no"},
        "log_config": {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "2"}},
        "detach": True,
        **_NO_CLIENT_PROXIES,
    }
    if "host-ipc" in waived:
        options["ipc_mode"] = "host"
        del options["shm_size"]
    if "host-network" in waived:
        options["network_mode"] = "host"
        del options["ports"]
    if plan.gpu is not None:
        options["device_requests"] = [_gpus(plan, product)]
    return options


def tmpfs(plan: LaunchPlan, size: int, product: Product) -> str:
    """Return the mount options of a scratch tmpfs of SIZE bytes that only the user of PLAN can read."""
    # exec: torch.compile loads what it compiles from here.
    common = f"rw,exec,nosuid,nodev,size={size},mode=0700"
    if product == "Podman":  # Podman supports no uid and gid; U chowns it to the container's user
        return f"{common},U"
    uid, _, gid = plan.user.partition(":")
    return f"{common},uid={uid},gid={gid}"


def _gpus(plan: LaunchPlan, product: Product) -> DeviceRequest:
    uuids = [gpu.uuid for gpu in plan.gpus]
    if product == "Podman":  # Podman silently ignores a request by capabilities
        return DeviceRequest(driver="cdi", device_ids=[f"{_CDI_GPU}={uuid}" for uuid in uuids])
    return DeviceRequest(device_ids=uuids, capabilities=[["gpu"]])
