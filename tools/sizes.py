#!/usr/bin/env python3
"""Print what the wheels of an image unpack to, by distribution, and how much of it is NVIDIA's libraries.

    tools/sizes.py IMAGE [PLATFORM]

Reads the wheels that the lock names in the user's store, where a build or `nvllm build IMAGE` has put them.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "launcher"))

from nvllm.core.paths import AMD64, Project, places  # noqa: E402
from nvllm.lock.project import read_lock  # noqa: E402
from nvllm.sources.store import Store  # noqa: E402

SHOWN = 12
"""Distributions that get a line; the others share one."""


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    store = Store(places(dict(os.environ)).store)
    lock = read_lock(Project(ROOT, *(arguments[1:] or [AMD64])), arguments[0])
    sizes: dict[str, int] = {}  # bytes by distribution
    for wheel in lock.wheels:
        with zipfile.ZipFile(store.path(wheel.file.sha256)) as archive:
            sizes[wheel.name] = sum(info.file_size for info in archive.infolist())
    total, nvidia = sum(sizes.values()), sum(size for name, size in sizes.items() if name.startswith("nvidia-"))
    ordered = sorted(sizes.items(), key=lambda one: -one[1])
    others = (f"{len(ordered) - SHOWN} others", sum(size for _, size in ordered[SHOWN:]))
    rows = [*ordered[:SHOWN], others, ("together", total), ("of it NVIDIA's (nvidia-*)", nvidia)]
    lines = (f"{name:28} {size / 1e6:6.0f} MB {100 * size / total:5.1f} %" for name, size in rows)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
