"""The connection to the container engine: where it listens, what it is, and its errors as refusals.

Docker from 20.10 on with either of its image stores, or Podman from 5.0 on behind the same API.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tarfile
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import docker
import requests

from nvllm.core.refusal import Refused
from nvllm.engine import answers, endpoint
from nvllm.engine.endpoint import Endpoint
from nvllm.host import engines
from nvllm.host.facts import EngineFacts, EngineProblem, Product

P = ParamSpec("P")
T = TypeVar("T")

LOAD_TIMEOUT = 1800
"""Seconds that the engine may take for one answer to a load, a pull or a command in a container."""

CONFLICT = 409
"""The HTTP status for a removal that is under way already, and for an image that is in use."""

FAILURES = (docker.errors.DockerException, requests.exceptions.RequestException)
"""Every exception of the client: errors that the engine answers, and failed connections."""

NO_CLIENT_PROXIES: Mapping[str, Any] = {"use_config_proxy": False}
"""For every container: the proxies of the client's configuration, which may hold passwords, are not copied into it."""

OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError, RecursionError, tarfile.TarError)
"""What this room and the client raise for an answer of another form than the API's; the client checks no form."""

MOST = 64 << 20
"""Most bytes of a file in an image, and of what a command in a container prints."""


def address() -> str:
    """Return where the engine listens, for messages."""
    named = endpoint.find(os.environ)
    return named.endpoint if isinstance(named, EngineProblem) else named.url


def open_client(timeout: int) -> docker.DockerClient:
    """Return a client for the engine of the context in use. Raises Refused NV510 if there is no such context."""
    named = endpoint.find(os.environ)
    if isinstance(named, EngineProblem):
        raise Refused([engines.unreachable(named)])
    if not named.stored:  # the client itself reads DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH
        return docker.from_env(timeout=timeout)
    return docker.DockerClient(base_url=named.url, tls=_certificates(named), timeout=timeout)


def _certificates(named: Endpoint) -> docker.tls.TLSConfig | bool:
    """Return how to prove who is who at NAMED; False if it needs no proof, as a socket."""
    if named.certificates is None:
        return False
    ca, cert, key = (named.certificates / f"{name}.pem" for name in ("ca", "cert", "key"))
    return docker.tls.TLSConfig(
        client_cert=(str(cert), str(key)) if cert.is_file() and key.is_file() else None,
        ca_cert=str(ca) if ca.is_file() else None,
        verify=named.verified,
    )


def engine_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Turn the exceptions of Docker's client that METHOD does not catch into refusals.

    NV510: the engine stopped answering. NV515: it answered with an error, or in another form than the API has.
    """

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        # Before the next one, of which it is a kind in Docker's client: the engine did answer.
        except docker.errors.APIError as error:
            raise Refused([engines.unreachable(error_answer(error))]) from error
        except requests.exceptions.RequestException as error:
            raise Refused([engines.unreachable(EngineProblem("silent", address(), str(error)[:300]))]) from error
        except OTHER_FORM as error:
            raise Refused([engines.unreachable(other_form(error))]) from error

    return wrapped


def error_answer(error: docker.errors.APIError) -> EngineProblem:
    """Return the problem that ERROR, an answer of the engine, reports."""
    return EngineProblem("error", address(), answers.shortened(f"{error.status_code}: {error.explanation or error}"))


def other_form(error: Exception) -> EngineProblem:
    """Return what is wrong with an answer that raised ERROR."""
    text = f"an answer of another form: {type(error).__name__}: {error}"
    return EngineProblem("error", address(), answers.shortened(text))


def patient_client() -> contextlib.closing[docker.DockerClient]:
    """Return a client with a long timeout: the engine answers a load or a pull only when all layers are unpacked."""
    return contextlib.closing(open_client(LOAD_TIMEOUT))


class Connection:
    """The CLIENT of an engine that answered. Containers that it starts have LABELS besides their own."""

    def __init__(self, client: docker.DockerClient, labels: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._labels = labels or {}

    @functools.cached_property
    def _version(self) -> Mapping[str, Any]:
        version: Mapping[str, Any] = self._client.version()
        return version

    @property
    @engine_errors
    def product(self) -> Product:
        """Docker, or Podman behind Docker's API, which does not support all that Docker supports."""
        return answers.product(self._version)

    @engine_errors
    def facts(self) -> EngineFacts:
        """Return the engine's version, storage driver, image store and network bridge."""
        bridge: Mapping[str, Any] = {}
        with contextlib.suppress(docker.errors.NotFound):
            bridge = self._client.api.inspect_network("bridge")
        return answers.engine(self._client.info(), self._version, bridge)
