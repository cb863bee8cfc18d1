"""A base image from a registry: pulled into the engine by its digest.

nvllm reads no byte of it. The engine verifies the pull against the digest, which covers the image's configuration,
which names the layers by diff_id. They are the lowest layers of the image that is built on the base.
"""

from __future__ import annotations

from nvllm.core.lock import LockedRegistryBase
from nvllm.core.progress import Progress
from nvllm.core.refusal import refuse
from nvllm.engine.engine import Engine
from nvllm.layers.oci import Lower


def reference(image: str) -> str:
    """Return IMAGE, ``name[:tag]@digest``, as ``name@digest``: a tag has no meaning beside a digest."""
    name, _, digest = image.partition("@")
    directory, slash, last = name.rpartition("/")
    return f"{directory}{slash}{last.partition(':')[0]}@{digest}"


def layers(
    base: LockedRegistryBase, platform: str, engine: Engine, progress: Progress, *, offline: bool
) -> tuple[Lower, ...]:
    """Return the layers of BASE for PLATFORM. ENGINE pulls it if it does not hold it.

    Raises Refused NV305 if it is missing and cannot be pulled, or must not be because of OFFLINE; NV307 if the engine's
    image is for another platform, or has another digest.
    """
    pinned = reference(base.image)
    digest = pinned.partition("@")[2]
    pulled, problem = engine.image(pinned), "not in the engine, and --offline"
    if pulled is None and not offline:
        problem = engine.pull(pinned, platform, progress) or "not in the engine after a pull"
        pulled = engine.image(pinned)
    if pulled is None:
        cure = f"docker pull --platform {platform} {pinned}"
        raise refuse("NV305", "docker engine", base.image, problem, cure)
    cure = f"docker rmi {pinned} && docker pull --platform {platform} {pinned}"
    if pulled.platform != platform:
        raise refuse("NV307", f"docker engine: {pinned}", f"an image for {platform}", pulled.platform, cure)
    if not any(repo_digest.endswith("@" + digest) for repo_digest in pulled.digests):
        names = ", ".join(pulled.digests) or "no digest"
        raise refuse("NV307", f"docker engine: {pinned}", digest, names, cure)
    return engine.layers(pinned, pulled)
