"""NV304, identity disagrees: what the image says of itself, in its identity file, is another build."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator

import pytest
from docker import DockerClient
from docker.errors import ImageNotFound

from support.engine_world import IMAGE, OTHER_BUILD, BuiltImage, Worlds, build_hash, record, tagged

pytestmark = pytest.mark.engine


def test_the_record_and_the_tag_are_forged(
    worlds: Worlds, docker_client: DockerClient, built_image: BuiltImage
) -> None:
    world = worlds.make(OTHER_BUILD)
    record(world, built_image.id)
    with tagged(docker_client, built_image.id, world) as tag:
        done = world.serve()
    assert (done.code, done.codes) == (3, ["NV304"])
    assert done.refusal["where"] == f"docker engine: {tag}: /opt/nvllm/identity.json"
    assert (done.refusal["expected"], done.refusal["found"]) == (build_hash(world), built_image.build_hash)
    assert done.refusal["cure"] == f"docker rmi --force {built_image.id} && nvllm build {IMAGE}"
    assert world.containers(docker_client) == []


@contextlib.contextmanager
def _with_identity(client: DockerClient, image: str, text: bytes | None) -> Iterator[str]:
    """Yield the id of a copy of IMAGE with another identity file; a link that leads nowhere if TEXT is None."""
    container = client.containers.create(image, command=["-"])
    try:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo("identity.json")
            if text is None:
                member.type, member.linkname = tarfile.SYMTYPE, "elsewhere"
            else:
                member.size = len(text)
            tar.addfile(member, io.BytesIO(text or b""))
        assert container.put_archive("/opt/nvllm", archive.getvalue())
        copy = str(container.commit().id)
    finally:
        container.remove(force=True)
    try:
        yield copy
    finally:
        with contextlib.suppress(ImageNotFound):  # its last tag took it away already
            client.images.remove(copy, force=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no identity file"),
        (b"", "an identity file that is not JSON"),
        (b"{ half", "an identity file that is not JSON"),
        (b"[]", "an identity file without a build hash"),
        (b"{}", "an identity file without a build hash"),
        (json.dumps({"build_hash": "of another image"}).encode(), "of another image"),
    ],
)
def test_an_image_that_was_changed_after_it_was_built(
    worlds: Worlds, docker_client: DockerClient, built_image: BuiltImage, text: bytes | None, said: str
) -> None:
    world = worlds.make(OTHER_BUILD)
    with _with_identity(docker_client, built_image.id, text) as copy:
        record(world, copy)
        with tagged(docker_client, copy, world):
            done = world.serve("--dry-run")
    assert (done.code, done.codes) == (3, ["NV304"])
    assert done.refusal["found"] == said
