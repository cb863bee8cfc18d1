"""The connection to a container engine that speaks Docker's API: what its silence and its refusals come to.

This module, `containers.py` and `engine.py` are the only ones that import docker.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import docker
import requests

from nvllm import engines
from nvllm.host import EngineProblem, Product
from nvllm.refusal import Refusal, Refused

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


class Daemon:
    """An engine that answered."""

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
