"""A pull request's text, from a file or from the host of its repository."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx2

from nvllm.core import reading
from nvllm.core.refusal import Refused, refuse
from nvllm.sources import fetch, gitsource
from nvllm.sources.fetch import Answer


def url(reference: str, env: Mapping[str, str]) -> str:
    """Return the URL of the pull request REFERENCE, ``owner/repository#number``: at the mirror of ENV, or at GitHub."""
    repository, _, number = reference.partition("#")
    return gitsource.url(f"{repository}/pull/{number}.patch", env)


def text(where: str, option: str, client: Callable[[], httpx2.Client], *, offline: bool) -> bytes:
    """Return the text of the pull request at WHERE, a file or a URL, which OPTION names. CLIENT gives one for a URL.

    Raises Refused NV109 for a file that cannot be read, NV209 for a URL that does not give it, or with OFFLINE.
    """
    if "://" not in where:
        return reading.required(Path(where), reading.PATCH, where)
    if offline:
        raise _not_given(where, "--offline")
    try:
        headers = {"Accept-Encoding": "identity"}
        with client().stream("GET", fetch.usable(where, option), headers=headers, follow_redirects=True) as response:
            response.raise_for_status()
            content = b""
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > reading.PATCH:
                    raise _not_given(where, f"more than {reading.PATCH} bytes")
    except httpx2.HTTPError as error:
        raise _not_given(where, Answer.of(where, error).problem) from error
    return content


def _not_given(where: str, problem: str) -> Refused:
    public = fetch.public_url(where)
    command = shlex.join(["curl", "--location", "--remote-name", public])
    cure = f"name the file that this brings, where the host can be reached: {command}"
    return refuse("NV209", public, "a pull request's .patch or .diff", problem, cure)
