"""The engines that nvllm runs on: their oldest versions, and their exceptions.

Pure, like `checks.py`, which uses it. `engine/engine.py` takes the refusal of an engine that does not answer from here.
"""

from __future__ import annotations

from typing import Literal

from packaging.version import InvalidVersion, Version

from nvllm.core.refusal import Refusal
from nvllm.host.facts import EngineFacts, EngineProblem

MINIMUM_API = "1.41"
"""That of Docker 20.10, the oldest on which nvllm was run (docs/engines.md)."""
MINIMUM_PODMAN = "5.0"

_CURES: dict[Literal["denied", "absent", "silent", "error", "context"], str] = {
    # Not group docker: whoever is in it is root of this host (SECURITY.md).
    "denied": "run nvllm by sudo, or with a rootless engine in DOCKER_HOST; group docker would make this user root",
    "absent": "sudo systemctl start docker",
    "silent": "docker version",
    "error": "docker info",
    "context": "export DOCKER_CONTEXT=default",
}

_EXCEPT_ON_PODMAN = (
    "GPUs only by the container device interface (nvidia-ctk cdi generate)",
    "/run and /var/tmp of a container are writable, and empty",
)
_EXCEPT_IN_CONTAINERD = ("an image takes about twice the disk",)


def described(engine: EngineFacts) -> str:
    """Return product, version, store and exceptions of ENGINE as text."""
    store = "containerd image store" if engine.store == "containerd" else "image store of its own"
    text = f"{engine.product} {engine.version}, {store}, storage driver {engine.storage_driver}"
    exceptions = exceptions_of(engine)
    return f"{text}; here {', '.join(exceptions)}" if exceptions else text


def exceptions_of(engine: EngineFacts) -> tuple[str, ...]:
    """Return the exceptions of ENGINE: what differs from Docker with its classic store."""
    if engine.product == "Podman":
        return _EXCEPT_ON_PODMAN
    return _EXCEPT_IN_CONTAINERD if engine.store == "containerd" else ()


def unreachable(problem: EngineProblem) -> Refusal:
    """Return the refusal of an engine that cannot be reached, for `doctor` and for commands that need one.

    An engine that answers with an error was reached: then its own words are NV515.
    """
    if problem.kind == "error":
        return Refusal("NV515", "docker engine", "an answer without an error", problem.text, _CURES["error"])
    return Refusal("NV510", problem.endpoint, "a Docker engine that answers", problem.text, _CURES[problem.kind])


def too_old(engine: EngineFacts) -> Refusal | None:
    """Return why ENGINE lacks what nvllm relies on, or None.

    Every Podman reports an old version of Docker's API, so its own version counts: one before 5 starts a container
    without the GPUs that were asked for.
    """
    where = "docker engine"
    if engine.product == "Podman":
        if not older(engine.version, MINIMUM_PODMAN):
            return None
        expected, version = f"Podman {MINIMUM_PODMAN} or newer", f"Podman {engine.version}"
        return Refusal("NV511", where, expected, version, "sudo apt-get install podman")
    if not older(engine.api_version, MINIMUM_API):
        return None
    expected = f"API {MINIMUM_API} or newer (Docker 20.10)"
    version = f"API {engine.api_version} (Docker {engine.version})"
    return Refusal("NV511", where, expected, version, "sudo apt-get install docker.io")


def older(version: str, minimum: str) -> bool:
    """Return whether VERSION is older than MINIMUM. One that cannot be parsed counts as older."""
    try:
        return Version(version) < Version(minimum)
    except InvalidVersion:
        return True  # what cannot be compared must not pass for new enough
