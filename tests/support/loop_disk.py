"""A disk of a test's own: ext4 in a file. It can be full, be frozen, and be measured, and nobody else writes to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(root: Path, mebibytes: int) -> Iterator[Path]:
    """Yield ROOT, a new directory, with a new ext4 of MEBIBYTES mounted on it until the context ends.

    Fails the test, and says what is missing, where this user cannot mount: the test is then run as root, or left out by
    whoever runs it.
    """
    missing = [name for name in ("mkfs.ext4", "mount", "umount", "fsfreeze") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.fail(f"a disk of a test's own needs root and loop devices; not here: {', '.join(missing) or 'root'}")
    image = root.with_name(f"{root.name}.ext4")
    with image.open("wb") as stream:
        stream.truncate(mebibytes << 20)
    root.mkdir(mode=0o700)
    _run("mkfs.ext4", "-q", "-F", str(image))
    _run("mount", "-o", "loop", str(image), str(root))
    root.chmod(0o700)
    try:
        yield root
    finally:
        _run("umount", "--lazy", str(root))


@contextmanager
def frozen(root: Path) -> Iterator[None]:
    """Stop every write to the disk at ROOT until the context ends; who writes waits, and no signal ends that."""
    _run("fsfreeze", "--freeze", str(root))
    try:
        yield
    finally:
        _run("fsfreeze", "--unfreeze", str(root))


def free(root: Path) -> int:
    """Return the free bytes of the disk at ROOT, as ``df`` shows them."""
    os.sync()
    figures = os.statvfs(root)
    return figures.f_bfree * figures.f_frsize


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr or done.returncode}"
