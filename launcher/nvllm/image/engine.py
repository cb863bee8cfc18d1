"""The container engine: what it is, and the images that it holds.

Docker from 20.10 on with either of its image stores, or Podman from 5.0 on behind the same API. Nothing here asks
which store it is: an image has two ids, and is known by whichever the engine reports.
"""

from __future__ import annotations

import contextlib
import io
import secrets
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import docker

from nvllm.core.progress import Progress
from nvllm.core.refusal import Refused, refuse
from nvllm.host import engines
from nvllm.host.facts import EngineFacts, EngineProblem, ImageFacts, Store
from nvllm.image import archive, oci
from nvllm.image.containers import Containers
from nvllm.image.daemon import CONFLICT, FAILURES, OURS_ALONE, TIMEOUT, asks, endpoint, patient
from nvllm.image.oci import Descriptor, Image, Lower

_DENIED = ("permission denied", "PermissionError")
_ABSENT = ("No such file", "FileNotFoundError", "Connection refused", "ConnectionRefused")


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


class Engine(Containers):
    """An engine that answered. Every method may raise Refused NV510 if it stops answering, and NV515 if it refuses."""

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


def _store(info: Mapping[str, Any]) -> Store:
    """Return where an engine that says INFO of itself keeps images."""
    status = [str(word) for pair in info.get("DriverStatus") or () for word in pair]
    return "containerd" if any("io.containerd.snapshotter" in word for word in status) else "its own"


def require() -> Engine:
    """Return the engine. Raises Refused NV510 if there is none; `doctor` has the same words."""
    found = connect()
    if isinstance(found, EngineProblem):
        raise Refused([engines.unreachable(found)])
    return found
