"""What a build must not show, planted in the wheels layer: a file for each kind of surroundings."""

from __future__ import annotations

import datetime
import locale
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from nvllm.cli import main
from nvllm.layers import tarlayer, wheel
from nvllm.layers.tarlayer import TarEntry
from nvllm.layers.wheel import Scheme


def path(kind: str) -> str:
    """Return the path of the file that shows KIND."""
    return f"opt/venv/planted/{kind.replace(' ', '-')}"


def _created_mode() -> str:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "made")
        path.touch()
        return f"{path.stat().st_mode:o}"


def _order() -> str:
    with tempfile.TemporaryDirectory() as name:
        for number in range(9):
            Path(name, f"file{number}").touch()
        walked = [names for _, _, names in os.walk(name)]
        return f"{os.listdir(name)} {walked}"


SHOWN: Mapping[str, Callable[[], str]] = {
    "directory": os.getcwd,
    "umask": _created_mode,
    "time zone": lambda: str(time.tzname),
    "locale": lambda: str(locale.getlocale()),
    "file order": _order,
    "clock": lambda: time.strftime("%Y-%m"),
    "date": lambda: f"{datetime.datetime.now(datetime.UTC):%Y-%m}",
    "processors": lambda: str(os.cpu_count()),
    "hash seed": lambda: str(hash("a word")),
    "environment": lambda: os.environ.get("HOME", ""),
    "user": lambda: str(os.getuid()),
    "nothing": lambda: "the same everywhere",
}
"""What shows each kind of surroundings; the last shows none."""


def plant(patch: pytest.MonkeyPatch) -> None:
    """Let the wheels layer of every build in this process show its surroundings, until PATCH is undone."""
    original = wheel.environment

    def planted(scheme: Scheme, interpreter: str) -> Iterator[TarEntry]:
        yield from original(scheme, interpreter)
        for kind, show in SHOWN.items():
            yield tarlayer.blob(path(kind), f"{show()}\n".encode())

    patch.setattr(wheel, "environment", planted)


def run(argv: Sequence[str]) -> int:
    """Run nvllm with ARGV and everything planted."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        return main.main(argv)
