"""The file system of an image as a tar archive: `python rootfs.py FILE DIRECTORY > ARCHIVE`. Needs root and Python.

FILE is JSON: the host's paths by those in the image. They are mounted below DIRECTORY, which is empty, in a mount
namespace of this process's own, and GNU tar reads them there; nothing is copied.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from gpu.container import bind

EMPTY = ("dev", "home", "media", "mnt", "proc", "root", "run", "srv", "sys", "tmp", "var/tmp")

LEFT_OUT = (
    "./etc/*shadow*",
    "./etc/ssl/private",
    "./usr/local/cuda*",
    "./usr/local/nvidia/*",
    "./usr/local/lib/docker",
    "./usr/share/doc",
    "./usr/share/locale",
    "./usr/share/man",
    "./usr/src",
    "*/site-packages/cupy*",
    "*/site-packages/jax*",
    "*/site-packages/onnx*",
    "*/site-packages/pyarrow*",
    "*/site-packages/tensorstore*",
)
"""Of the machine's own files, what neither vLLM nor torch loads, and what is secret."""


def lay(directory: Path, root: Mapping[str, str]) -> None:
    """Mount ROOT below DIRECTORY, with the links at the top of this machine."""
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        link = Path("/", name)
        if link.is_symlink():
            (directory / name).symlink_to(link.readlink())
    for path, source in sorted(root.items()):  # what is above comes before what is below
        bind(Path(source), directory / path.lstrip("/"))
    for name in EMPTY:
        if not (directory / name).exists():
            (directory / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp"):
        (directory / name).chmod(0o1777)


def become(directory: Path, left_out: Sequence[str]) -> NoReturn:
    """Become tar, which writes what is in DIRECTORY, less LEFT_OUT, to the output."""
    excluded = [f"--exclude={pattern}" for pattern in left_out]
    os.execvp("tar", ["tar", "-C", str(directory), "--numeric-owner", *excluded, "-cf", "-", "."])


def command(file: Path, directory: Path) -> list[str]:
    """Return the command that writes the archive of FILE by way of DIRECTORY."""
    own = ["unshare", "--mount", "--propagation", "private"]
    return [*own, sys.executable, "-m", "gpu.rootfs", str(file), str(directory)]


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    target = Path(sys.argv[2])
    target.mkdir(parents=True)
    lay(target, asked["root"])
    become(target, [*LEFT_OUT, *asked["left_out"]])
