"""The evidence of blesses: the logs of every start, kept as long as a manifest names one of them.

::

    <state>/blessing/<instance>/<number>/    one bless, also a rejected one; the newest has the highest number
        bootstrap/                           a run directory, see `serve/rundir.py`
        trial-1/ ...

A manifest holds the sha256 of the log of every trial. So a bless removes nothing of another one; only `nvllm gc` does,
which knows the manifests of every project.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from nvllm.core import canonical, durable
from nvllm.core.paths import ensure
from nvllm.serve.rundir import RunDirectory


def begin(instance: Path) -> Path:
    """Create and return a directory for the next bless below INSTANCE. Raises Refused NV911 if it cannot."""
    with durable.writing(instance):
        ensure(instance)
        number = max((int(path.name) for path in _numbered(instance)), default=0)
        durable.reached("counted")
        while True:
            number += 1
            directory = instance / str(number)
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:  # another bless has just begun
                continue
            return directory


def newest(instance: Path) -> Path | None:
    """Return the directory of the last bless below INSTANCE, or None if there was none."""
    return max(_numbered(instance), key=lambda directory: int(directory.name), default=None)


def needed(bless: Path, logs: Set[str]) -> bool:
    """Return whether the directory of a BLESS holds a log whose sha256 is one of LOGS."""
    boots = [RunDirectory(path).log for path in bless.glob("*")]
    return any(canonical.sha256_file(log) in logs for log in boots if log.is_file())


def _numbered(instance: Path) -> list[Path]:
    return [path for path in instance.glob("*") if path.name.isascii() and path.name.isdigit()]
