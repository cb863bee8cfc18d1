"""The images of the engine: which there are, loading and pulling them, and reading from them.

An image has two ids; which of them an engine uses depends on its store.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker

from nvllm.core.progress import Progress
from nvllm.core.refusal import refuse
from nvllm.engine import answers
from nvllm.engine.client import (
    CONFLICT,
    FAILURES,
    LOAD_TIMEOUT,
    MOST,
    NO_CLIENT_PROXIES,
    OTHER_FORM,
    Connection,
    engine_errors,
    patient_client,
)
from nvllm.host.facts import ImageFacts, StoredImage
from nvllm.layers import archive, oci
from nvllm.layers.oci import Descriptor, Image, Lower

_FULL = re.compile("no space left on device|disk quota exceeded", re.IGNORECASE)

_REFERENCE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@-]|/(?=[A-Za-z0-9]))*")
"""What names an image, also by an id; no part of it is ``..``."""


class Images(Connection):
    """The images that an engine holds."""

    @engine_errors
    def image(self, reference: str) -> ImageFacts | None:
        """Return the image that REFERENCE (a tag or an id) names, or None."""
        if not _REFERENCE.fullmatch(reference):  # it becomes a part of the request's path
            return None
        try:
            return answers.image(self._client.api.inspect_image(reference))
        except docker.errors.NotFound:
            return None

    @engine_errors
    def images(self) -> tuple[ImageFacts, ...]:
        """Return every image that nvllm built."""
        listed = answers.ids(self._client.api.images(filters={"label": "nvllm.build-hash"}))
        return tuple(facts for image_id in listed if (facts := self.image(image_id)) is not None)

    @engine_errors
    def stored(self) -> tuple[StoredImage, ...]:
        """Return every image of the engine with the sizes of its layers, also those that nvllm did not build."""
        api, stored = self._client.api, []
        for image_id in answers.ids(api.images(all=True)):
            with contextlib.suppress(docker.errors.NotFound):  # it has just gone
                stored.append(answers.stored(api.inspect_image(image_id), api.history(image_id)))
        return tuple(stored)

    def load(self, image: Image, tags: Sequence[str], progress: Progress) -> None:
        """Load IMAGE under TAGS, sending only layers that the engine does not hold yet.

        Raises Refused NV304 if the engine then holds another image or an incomplete one, NV506 if its disk is full;
        TAGS are unchanged then. The image is loaded under a temporary name first: a load moves a name away from the
        image that had it, and some stores then delete that image.
        """
        now, stored = time.time(), self.images()
        own = archive.temporary(now)
        # Twice what the engine has for one answer: a name that is older is of no load that still runs.
        for tag in archive.left((tag for other in stored for tag in other.tags), now - 2 * LOAD_TIMEOUT):
            self.remove_image(tag)
        shared = max((oci.common(image.diff_ids, other.diff_ids) for other in stored), default=0)
        below = len(image.below)
        try:
            error, loaded = self._send_and_check(image, own, max(shared, below), progress)
            if loaded is None and shared > below:
                error, loaded = self._send_and_check(image, own, below, progress)
            if loaded is None:
                where, cure = f"docker engine: {tags[0]}", f"nvllm build {image.name}"
                if _FULL.search(error):
                    # Docker keeps a copy of what it is sent until it has unpacked all of it.
                    needed = 2 * archive.size(image, below) / 2**30
                    room = f"about {needed:.1f} GiB free on the engine's disk, to copy and unpack the image"
                    raise refuse("NV506", where, room, error, f"nvllm gc && {cure}")
                raise refuse("NV304", where, " or ".join(image.ids), error, cure)
            for tag in tags:
                self.tag(loaded.id, tag)
        finally:
            self.remove_image(own)

    def _send_and_check(self, image: Image, tag: str, skip: int, progress: Progress) -> tuple[str, ImageFacts | None]:
        """Send IMAGE without its SKIP lowest layers under the name TAG; return what is wrong, or the loaded image.

        The engine's answer proves nothing: an engine that lacks a layer may still report success. Docker 28 then lists
        no layers; Docker 26 lists all of them, and fails only when a container is created.
        """
        error, loaded = self._send(image, tag, skip, progress), self.image(tag)
        if loaded is None:
            return error or "no image", None
        if loaded.id not in image.ids:
            return error or loaded.id, None
        if loaded.diff_ids != image.diff_ids:
            return error or f"{loaded.id}, with {len(loaded.diff_ids)} of {len(image.diff_ids)} layers", None
        if unusable := self._unusable(loaded.id):
            return error or f"{loaded.id}, from which no container can be created: {unusable}", None
        return "", loaded

    @engine_errors
    def _unusable(self, image_id: str) -> str:
        """Return why no container can be created from the image IMAGE_ID, or "" if one can."""
        try:
            with self._unstarted(image_id):
                return ""
        except docker.errors.APIError as error:
            return str(error.explanation)

    def _send(self, image: Image, tag: str, skip: int, progress: Progress) -> str:
        """Send IMAGE without its SKIP lowest layers under the name TAG; return the engine's error, or ""."""
        total = archive.size(image, skip)

        def counted() -> Iterator[bytes]:
            with progress.task("load into the engine", total, "B") as task:
                for chunk in archive.stream(image, tag, skip):
                    yield chunk
                    task.advance(len(chunk))
            # Docker unpacks only what it has whole: of 7 GB, for minutes after the last byte was sent.
            unpacking.enter_context(progress.task("unpack in the engine", None, "B"))

        try:
            with patient_client() as engine, contextlib.ExitStack() as unpacking:
                return answers.errors(engine.api.load_image(counted(), quiet=True))
        except (*FAILURES, *OTHER_FORM) as error:
            return answers.shortened(str(error))

    def pull(self, reference: str, platform: str, progress: Progress) -> str:
        """Pull the image REFERENCE for PLATFORM from its registry; return the engine's error, or ""."""
        try:
            with patient_client() as engine, progress.task(f"pull {reference}", None, "files"):
                return answers.errors(engine.api.pull(reference, platform=platform, stream=True, decode=True))
        except (*FAILURES, *OTHER_FORM) as error:
            return answers.shortened(str(error))

    def layers(self, reference: str, pulled: ImageFacts) -> tuple[Lower, ...]:
        """Return the layers of the pulled image REFERENCE, PULLED, with the registry's blobs if needed.

        A containerd image store keeps the compressed blobs of the registry, and the manifest of an image built on them
        has to name them.
        """
        # A containerd store uses the manifest's digest as the image id. Podman needs every layer in an OCI manifest.
        needs_blobs = pulled.id == reference.rpartition("@")[2] or self.product == "Podman"
        blobs = self._blobs(reference, pulled.diff_ids) if needs_blobs else None
        return tuple(map(Lower, pulled.diff_ids, blobs or [None] * len(pulled.diff_ids)))

    @engine_errors
    def _blobs(self, reference: str, diff_ids: Sequence[str]) -> tuple[Descriptor, ...] | None:
        """Return the blobs of the image REFERENCE with the layers DIFF_IDS, read from the engine's `save` archive.

        No other request of the API names them. The archive is streamed once; only its JSON documents are kept.
        """
        with patient_client() as engine:
            stream = engine.api.get_image(reference)
            return archive.blobs(stream, diff_ids)

    @engine_errors
    def description(self, reference: str) -> Mapping[str, Any] | None:
        """Return the image REFERENCE in the form of an OCI configuration, with its id, or None."""
        try:
            inspected, history = self._client.api.inspect_image(reference), self._client.api.history(reference)
        except docker.errors.NotFound:
            return None
        return answers.description(inspected, history)

    @engine_errors
    def save(self, reference: str, path: Path) -> None:
        """Write the archive of the image REFERENCE, as the engine saves it, to PATH."""
        with patient_client() as engine, path.open("wb") as out:
            for chunk in engine.api.get_image(reference):
                out.write(chunk)

    @engine_errors
    def tag(self, image_id: str, tag: str) -> None:
        """Give the image IMAGE_ID the name TAG."""
        repository, _, name = tag.partition(":")
        self._client.api.tag(image_id, repository, name)

    @engine_errors
    def remove_image(self, reference: str) -> bool:
        """Remove the tag or image REFERENCE; return False if a container still uses it, so that it stays."""
        try:
            self._client.api.remove_image(reference)
        except docker.errors.NotFound:
            return True
        except docker.errors.APIError as error:
            if error.status_code != CONFLICT:
                raise
            return False
        return True

    @engine_errors
    def read_file(self, image_id: str, path: str) -> bytes | None:
        """Return the content of the regular file PATH in the image IMAGE_ID, or None. Starts no container."""
        with self._unstarted(image_id) as container:
            try:
                stream, _ = self._client.api.get_archive(container, path)
            except docker.errors.NotFound:
                return None
            with contextlib.closing(stream):  # the engine removes no container whose archive is still read
                return answers.file(stream, MOST)

    @contextlib.contextmanager
    def _unstarted(self, image_id: str) -> Iterator[str]:
        """Yield the id of a container of IMAGE_ID that is created, never started, and removed afterwards."""
        labels = {"nvllm.reader": image_id}
        # "-": the engine creates no container without a command, and an image may have none. It is never run.
        container = str(self._client.api.create_container(image_id, ["-"], labels=labels, **NO_CLIENT_PROXIES)["Id"])
        try:
            yield container
        finally:
            self._client.api.remove_container(container, force=True)
