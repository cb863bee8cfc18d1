"""Write what compiling vLLM needs, by version and sha256: ``images/*-build-requirements.txt``.

Run it with the project's Python (.venv/bin/python tools/lock_native.py [NAME]) when `pyproject.toml` of a pinned vLLM
asks for something else. pip resolves, with its own configuration, for the Python and the machine that run it, so each
file is written on a machine of its image's kind. No index is written into a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from nvllm.core.lock import LockedFile, LockedWheel
from nvllm.image.dockerfiles import locked_line
from nvllm.sources import wheels as wheelset
from nvllm.sources.indexes import Sources
from nvllm.sources.wheels import Target

# build-system.requires of the pinned vLLM without torch, which is the image's, and pip, which the base does not have.
WANTED: Mapping[str, tuple[Target, tuple[str, ...]]] = {
    "native": (  # vLLM 0.28.0
        Target("3.11", "x86_64", 31),
        (
            "cmake>=3.26.1",
            "jinja2",
            "ninja",
            "packaging>=24.2",
            "pip",
            "setuptools-rust>=1.9.0",
            "setuptools-scm>=8.0",
            "setuptools==77.0.3",  # what the image holds: torch's build helpers import it too
            "wheel",
        ),
    ),
    "gb10": (  # the fork at 01ca4062c
        Target("3.12", "aarch64", 31),
        (
            "cmake>=3.26.1",
            "jinja2",
            "ninja",
            "packaging>=24.2",
            "pip",
            "setuptools-scm>=8.0",
            "setuptools==80.10.2",  # what the image holds
            "wheel",
        ),
    ),
}

HEADER = """\
# What compiling vLLM needs besides the image's own wheels; `nvllm dockerfile` puts it into a build context.
# Written by: python tools/lock_native.py{argument}
"""


def main(name: str = "native") -> None:
    target, requested = WANTED[name]
    indexes = Sources(None, os.environ).indexes()
    resolved = wheelset.resolve(requested, target, {})
    files = [
        LockedFile(candidate.filename, candidate.sha256, indexes.size(candidate.url), "pypi") for candidate in resolved
    ]
    wheels = [
        LockedWheel(candidate.name, candidate.version, file) for candidate, file in zip(resolved, files, strict=True)
    ]
    path = Path(__file__).parents[1] / "images" / f"{name}-build-requirements.txt"
    header = HEADER.format(argument="" if name == "native" else f" {name}")
    path.write_text(header + "".join(locked_line(wheel) for wheel in wheels))


if __name__ == "__main__":
    main(*sys.argv[1:])
