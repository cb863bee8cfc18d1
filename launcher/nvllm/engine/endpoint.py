"""The engine that Docker's client would use here: that of DOCKER_HOST, or of the context in use.

`docker context use` writes the context's name into the configuration; its address lies in the context store beside it.
The Docker library knows of neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import canonical, reading
from nvllm.host.facts import EngineProblem

LOCAL = "unix:///var/run/docker.sock"

_DEFAULT = "default"
"""The context that stands for DOCKER_HOST, or the socket of this host. It is not in the store."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens. STORED is whether a context of the store says so; then CERTIFICATES are its, if any.

    Otherwise the environment says whether and with which certificates to connect.
    """

    url: str
    stored: bool = False
    certificates: Path | None = None
    verified: bool = True
    """Whether the certificate of the engine is checked."""


def configuration_of(env: Mapping[str, str]) -> Path:
    """Return the path of the configuration of Docker's client in the environment ENV."""
    return Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or "/") / ".docker") / "config.json"


def find(env: Mapping[str, str]) -> Endpoint | EngineProblem:
    """Return the engine that ENV and Docker's configuration name, or why they name none.

    Like Docker's client: DOCKER_HOST, else DOCKER_CONTEXT, else the context that the configuration says is in use.
    Raises Refused NV109 if the configuration is no regular file.
    """
    configuration = configuration_of(env)
    directory = configuration.parent
    try:
        data = reading.content(configuration, reading.CONFIGURATION)
    except (FileNotFoundError, PermissionError):  # Docker's client goes on without it
        data = b"{}"
    except OSError as error:
        raise reading.refused(str(configuration), error) from error
    if env.get("DOCKER_HOST"):
        return Endpoint(env["DOCKER_HOST"])
    name = env.get("DOCKER_CONTEXT")
    if not name:
        try:
            name = _context_in_use(data)
        except ValueError as error:
            return EngineProblem("context", str(configuration), f"no configuration of Docker: {error}"[:300])
    return Endpoint(LOCAL) if name == _DEFAULT else _stored(directory, name)


def _stored(directory: Path, name: str) -> Endpoint | EngineProblem:
    """Return where the context NAME of the store in DIRECTORY leads, or why it leads nowhere."""
    where = f"docker context {name}"
    # Docker's store names the directories of a context by the sha256 of its name.
    key = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    try:
        data = reading.content(directory / "contexts/meta" / key / "meta.json", reading.CONFIGURATION)
        match canonical.decode(data):
            case {"Endpoints": {"docker": {"Host": str(url), **rest}}} if url:
                verified = rest.get("SkipTLSVerify") is not True
            case _:
                return EngineProblem("context", where, "the context names no Docker engine")
    except FileNotFoundError:
        return EngineProblem("context", where, f"no such context in {directory}")
    except (OSError, ValueError) as error:
        return EngineProblem("context", where, f"its meta.json cannot be used: {error}"[:300])
    if url.startswith("ssh://"):
        return EngineProblem("context", where, f"{url}: nvllm mounts files of this host, and does not connect by ssh")
    certificates = directory / "contexts/tls" / key / "docker"
    return Endpoint(url, stored=True, certificates=certificates if certificates.is_dir() else None, verified=verified)


def _context_in_use(data: bytes) -> str:
    """Return the name of the context that DATA, Docker's configuration, says is in use. Raises ValueError."""
    match canonical.mapping(canonical.decode(data)).get("currentContext"):
        case None | "":
            return _DEFAULT
        case str(name):
            return name
    raise ValueError("currentContext is no text")
