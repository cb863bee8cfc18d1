"""Credentials of registries, as `docker login` keeps them: in Docker's configuration, or behind its helper programs.

nvllm stores none of them and never shows one.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvllm.core import canonical, proc, reading
from nvllm.core.refusal import refuse
from nvllm.engine import endpoint

_TIMEOUT = 60.0
"""Seconds; a helper may ask a keyring that waits for its owner."""

_NOTHING = "credentials not found"
"""What every helper program says when it has none for a registry."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a SECRET, which no representation shows."""

    user: str
    secret: str = field(repr=False)


def find(registry: str, env: Mapping[str, str]) -> Credentials | None:
    """Return what the user of ENV logs in to REGISTRY (``host[:port]``) with, or None.

    Raises Refused NV109 for a configuration that cannot be read, NV331 for one without sense, a helper that fails, and
    an identity token, and NV512 for a helper that is not installed.
    """
    path = endpoint.configuration_of(env)
    try:
        document = canonical.decode(reading.content(path, reading.CONFIGURATION))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise reading.refused(str(path), error) from error
    except ValueError as error:
        raise refuse("NV331", str(path), "Docker's configuration, a JSON object", str(error), "docker login") from error
    said: Mapping[str, Any] = document if isinstance(document, dict) else {}
    helper = _mapping(said.get("credHelpers")).get(registry) or said.get("credsStore")
    if isinstance(helper, str) and helper:
        return _ask(helper, registry, env)
    known = _mapping(said.get("auths"))
    return _written(_mapping(known.get(registry) or known.get(f"https://{registry}")), f"{path}: {registry}")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _written(entry: Mapping[str, Any], where: str) -> Credentials | None:
    """Return the credentials in ENTRY, one of the configuration's ``auths``."""
    cure = f"docker login {where.rpartition(' ')[2]}"
    if entry.get("identitytoken"):
        raise refuse("NV331", where, "a user and a password", "an identity token, which nvllm does not use", cure)
    coded = entry.get("auth")
    if not isinstance(coded, str) or not coded:
        return None
    try:
        user, colon, secret = base64.b64decode(coded, validate=True).decode().partition(":")
    except ValueError:  # no base64, letters beyond ASCII, or no UTF-8 in it
        user, colon, secret = "", "", ""
    if not colon:
        raise refuse("NV331", where, "user and password in base64", "something else", cure)
    return Credentials(user, secret.rstrip("\0"))


def _ask(helper: str, registry: str, env: Mapping[str, str]) -> Credentials | None:
    """Return what the program ``docker-credential-HELPER`` has for REGISTRY."""
    where, cure = f"docker-credential-{helper}", f"docker login {registry}"
    if not helper.replace("-", "").replace("_", "").isalnum():
        raise refuse("NV331", where, "the name of a helper program", helper[:100], cure)
    program = proc.require(where, "golang-docker-credential-helpers")
    try:
        done = proc.run([program, "get"], env=proc.environment(dict(env)), timeout=_TIMEOUT, stdin=registry.encode())
    except subprocess.TimeoutExpired:
        raise refuse("NV331", where, f"credentials of {registry}", "no answer in time", cure) from None
    if done.returncode != 0:
        said = (done.stdout or done.stderr).decode(errors="replace").strip()[:200]
        if said.startswith(_NOTHING):
            return None
        raise refuse("NV331", where, f"credentials of {registry}", said or f"exit status {done.returncode}", cure)
    try:
        answer = _mapping(canonical.decode(done.stdout))
    except ValueError:
        answer = {}
    user, secret = answer.get("Username"), answer.get("Secret")
    if not isinstance(user, str) or not isinstance(secret, str):
        raise refuse("NV331", where, "a user and a secret as JSON", "something else", cure)
    if user == "<token>":
        raise refuse("NV331", where, "a user and a password", "an identity token, which nvllm does not use", cure)
    return Credentials(user, secret)
