"""The container engine, by its images and its containers, and how it is reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import docker

from nvllm.core import paths
from nvllm.core.refusal import Refused
from nvllm.engine import client, endpoint
from nvllm.engine.containers import Containers
from nvllm.engine.images import Images
from nvllm.host import engines
from nvllm.host.facts import HOME_LABEL, EngineProblem

_TIMEOUT = 60
"""Seconds that the engine may take for one answer: the default of Docker's own client."""

# docker's client gives the error of a socket as text alone.
_DENIED = ("permission denied", "PermissionError")
_ABSENT = ("No such file", "FileNotFoundError", "Connection refused", "ConnectionRefused")


def connect() -> Engine | EngineProblem:
    """Return the engine of DOCKER_HOST or of Docker's context in use, or why it cannot be reached.

    Raises Refused NV109 if Docker's configuration, which its client opens, is no regular file.
    """
    problem = endpoint.find(os.environ)
    if isinstance(problem, EngineProblem):
        return problem
    try:
        opened = client.open_client(_TIMEOUT)
        opened.ping()
    except RecursionError as error:
        return client.other_form(error)
    except (*client.FAILURES, *client.OTHER_FORM) as error:
        # What its first request brings, for the version of the API, the client wraps into an error of its own.
        answer = error.__cause__ if isinstance(error.__cause__, docker.errors.APIError) else error
        if isinstance(answer, docker.errors.APIError):
            return client.error_answer(answer)
        text = str(error)
        kind: Literal["denied", "absent", "silent"] = "absent" if any(word in text for word in _ABSENT) else "silent"
        if any(word in text for word in _DENIED):
            kind = "denied"
        return EngineProblem(kind, client.address(), text.splitlines()[0][:300] if text else type(error).__name__)
    return Engine(opened, {HOME_LABEL: paths.places(os.environ).id})


def require() -> Engine:
    """Return the engine. Raises Refused NV510, with the text that `doctor` shows, if there is none."""
    engine = connect()
    if isinstance(engine, EngineProblem):
        raise Refused([engines.unreachable(engine)])
    return engine


class Engine(Images, Containers):
    """An engine that answered. Every method may raise Refused NV510 if it stops answering, and NV515 if it refuses."""

    def labelling(self, labels: Mapping[str, str]) -> Engine:
        """Return this engine; the containers that it starts from there also have LABELS."""
        return Engine(self._client, {**self._labels, **labels})
