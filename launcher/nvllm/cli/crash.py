"""A crash of nvllm itself: a file for whoever repairs it, instead of a traceback for whoever meets it.

The file holds the traceback, the versions and the arguments. It never holds the environment, and no value
that looks secret: it is made to be attached to a bug report.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from nvllm import __version__
from nvllm.core import clock, secret
from nvllm.core.paths import ensure

_HIDDEN = "***"
_SHORTEST_SECRET = 6  # hiding "1" or "yes" wherever they stand would make the report unreadable


def redact(argv: Sequence[str]) -> list[str]:
    """Return ARGV without the values of options whose name looks secret, and without users in URLs."""
    words: list[str] = []
    value_is_secret = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        secret_name = secret.named(name)
        if value_is_secret and not argument.startswith("-"):
            words.append(_HIDDEN)
        elif secret_name and equals:
            words.append(f"{name}={_HIDDEN}")
        else:
            words.append(secret.TOKEN.sub(_HIDDEN, secret.URL_USER.sub(f"{_HIDDEN}@", argument)))
        value_is_secret = argument.startswith("-") and secret_name and not equals
    return words


def scrub(text: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return TEXT without what ARGV or ENV hold as secrets: exception messages like to quote what they were given."""
    secrets = {value for name, value in env.items() if secret.named(name)}
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if secret.named(name):
            secrets.update([value] if equals else argv[index + 1 : index + 2])
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, _HIDDEN)
    return secret.TOKEN.sub(_HIDDEN, secret.URL_USER.sub(f"{_HIDDEN}@", text))


def render(error: BaseException, argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the report of ERROR, raised while nvllm ran with ARGV (without the program's name)."""
    packages = sorted(
        f"{package.metadata['Name']} {package.version}"
        for package in metadata.distributions()
        if package.metadata["Name"]
    )
    trace = "".join(traceback.format_exception(error))
    return (
        f"nvllm {__version__} crashed\n"
        f"time      {clock.now()}\n"
        f"command   {shlex.join(['nvllm', *redact(argv)])}\n"
        f"python    {sys.version.split()[0]}\n"
        f"platform  {platform.platform()}\n"
        f"packages  {', '.join(packages)}\n"
        f"\n{scrub(trace, argv, env)}"
    )


def write(error: BaseException, argv: Sequence[str], env: Mapping[str, str], directory: Path) -> Path:
    """Write the report of ERROR into DIRECTORY, readable by its owner only, and return its path. Raises OSError."""
    ensure(directory)
    path = directory / f"{clock.compact(clock.now())}-{os.getpid()}-{time.monotonic_ns()}.txt"
    # O_EXCL: nothing that already has the name is written into, whoever put it there.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(render(error, argv, env))
    return path
