#!/usr/bin/env python3
"""Print what the wheels of an image unpack to, by distribution, and what the spec leaves out of them.

    tools/sizes.py IMAGE [PLATFORM]

Reads the wheels that the lock names in the user's store, where a build or `nvllm build IMAGE` has put them. No build
fetches an excluded wheel: where the store does not have it, its own size counts instead of what it unpacks to.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "launcher"))

from nvllm.core.lock import Lock, LockedWheel  # noqa: E402
from nvllm.core.paths import AMD64, Project, places  # noqa: E402
from nvllm.lock.project import read_lock  # noqa: E402
from nvllm.sources.store import Store  # noqa: E402

SHOWN = 12
"""Distributions that get a line; the others share one."""


def members(wheel: LockedWheel, store: Store) -> Mapping[str, int]:
    """Return the bytes of each member of WHEEL."""
    with zipfile.ZipFile(store.path(wheel.file.sha256)) as archive:
        return {info.filename: info.file_size for info in archive.infolist()}


def left_out(lock: Lock, store: Store) -> dict[str, int]:
    """Return the bytes of what the image does not have of LOCK's wheels, by what people call it."""
    by_name: dict[str, int] = {}
    for wheel in lock.excluded:
        here = store.has(wheel.file.sha256)
        name = f"{wheel.name} {wheel.version}" + ("" if here else ", packed")
        by_name[name] = sum(members(wheel, store).values()) if here else wheel.file.size
    for wheel in lock.wheels:
        if wheel.omitted:
            sizes = members(wheel, store)
            for path in wheel.omitted:
                by_name[f"{wheel.name}: {path}"] = sum(
                    size for name, size in sizes.items() if f"{name}/".startswith(f"{path}/")
                )
    return by_name


def report(lock: Lock, store: Store) -> str:
    """Return the table of LOCK, whose wheels STORE has."""
    kept = {
        wheel.name: sum(size for path, size in members(wheel, store).items() if not wheel.omits(path))
        for wheel in lock.wheels
    }
    without = left_out(lock, store)
    nvidia = sum(size for name, size in kept.items() if name.startswith("nvidia-"))
    total, more = sum(kept.values()), sum(without.values())
    ordered = sorted(kept.items(), key=lambda row: -row[1])
    rows = [
        *ordered[:SHOWN],
        (f"{len(ordered) - SHOWN} others", sum(size for _, size in ordered[SHOWN:])),
        ("in the image", total),
        ("of it NVIDIA's (nvidia-*)", nvidia),
        *sorted(((f"without {name}", size) for name, size in without.items()), key=lambda row: -row[1]),
        ("left out together", more),
        ("the same wheels, whole", total + more),
    ]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:{width}} {size / 1e6:6.0f} MB {100 * size / (total + more):5.1f} %\n" for name, size in rows)


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    store = Store(places(dict(os.environ)).store)
    sys.stdout.write(report(read_lock(Project(ROOT, *(arguments[1:] or [AMD64])), arguments[0]), store))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
