"""Write images/native-build-requirements.txt: what compiling vLLM needs, by version and sha256.

Run it with the project's Python (.venv/bin/python tools/lock_native.py) when `pyproject.toml` of a pinned vLLM
asks for something else. pip resolves, with its own configuration; no index is written into the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from nvllm import wheelset
from nvllm.dockerfiles import REQUIREMENTS, locked_line
from nvllm.indexes import Sources
from nvllm.lock import LockedFile, LockedWheel
from nvllm.wheelset import Target

# build-system.requires of vLLM 0.28.0 without torch, which is the image's, and pip, which the base does not have.
WANTED = (
    "cmake>=3.26.1",
    "jinja2",
    "ninja",
    "packaging>=24.2",
    "pip",
    "setuptools-rust>=1.9.0",
    "setuptools-scm>=8.0",
    "setuptools==77.0.3",  # what the image holds: torch's build helpers import it too
    "wheel",
)
TARGET = Target("3.11", "x86_64", 31)

HEADER = """\
# What compiling vLLM needs besides the image's own wheels; `nvllm dockerfile` puts it into a build context.
# Written by: python tools/lock_native.py
"""


def main() -> None:
    indexes = Sources(None, os.environ).indexes()
    found = wheelset.resolve(WANTED, TARGET, {})
    files = [LockedFile(one.filename, one.sha256, indexes.size(one.url), "pypi") for one in found]
    wheels = [LockedWheel(one.name, one.version, file) for one, file in zip(found, files, strict=True)]
    path = Path(__file__).parents[1] / "images" / REQUIREMENTS
    path.write_text(HEADER + "".join(locked_line(wheel) for wheel in wheels))


if __name__ == "__main__":
    main()
