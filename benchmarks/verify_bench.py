"""Measure how long a blessed cache of 24 files and 82 MB takes to verify, beside openssl over the same bytes.

``python benchmarks/verify_bench.py [directory]``: the cache lies in DIRECTORY, a temporary one by default. The
target is 1.2 times openssl plus 50 ms; one that is missed is printed as missed. All are run in turn, so that what
else the machine does hits each alike; the files are in the page cache, as they are when a serve has just been stopped.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nvllm.cache import staging
from nvllm.cache.cachetree import Tree
from nvllm.cache.store import TreeStore
from nvllm.cli import terminal

ROUNDS = 15
FACTOR, EXTRA = 1.2, 0.05

# The shape of the nvllm fork's cache: one artefact, its graph, two small files, and twenty kernels.
SIZES = [73_531_166, 1_757_083, 8_317, 760, *[1_250_000] * 4, *[85_816] * 16]


def make(root: Path) -> Path:
    """Write a cache of that shape below ROOT."""
    bytes_of = random.Random(0)
    for number, size in enumerate(SIZES):
        path = root / f"{number % 8:02x}" / f"{number:02x}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes_of.randbytes(size))
        path.chmod(0o644)
    for directory, _, _ in os.walk(root):
        os.chmod(directory, 0o755)
    return root


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(store: TreeStore, tree: Tree, directory: Path) -> dict[str, list[float]]:
    """Return the seconds of each round, by what was done."""
    files = [os.fspath(store.path(tree.hash) / file.path) for file in tree.files]
    measured: dict[str, list[float]] = {"openssl dgst -sha256": [], "verify in place": [], "verify while staging": []}
    for _ in range(ROUNDS):
        openssl = ["openssl", "dgst", "-sha256", *files]
        measured["openssl dgst -sha256"].append(
            seconds(partial(subprocess.run, openssl, stdout=subprocess.DEVNULL, check=True))
        )
        measured["verify in place"].append(seconds(lambda: store.verify(tree, "bless again")))
        measured["verify while staging"].append(
            seconds(lambda: store.stage(tree, directory / "staging", "bless again"))
        )
        (staged,) = (directory / "staging").iterdir()
        staging.discard(staged)
    return measured


def main(argv: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="nvllm-verify-", dir=argv[0] if argv else None) as name:
        directory = Path(name)
        store = TreeStore(directory / "trees")
        tree = store.adopt(make(directory / "fresh"), "bless again")
        shutil.rmtree(directory / "fresh")
        measured = measure(store, tree, directory)
        store.remove(tree.hash)
    openssl = statistics.median(measured["openssl dgst -sha256"])
    target = FACTOR * openssl + EXTRA
    rows = []
    for what, times in measured.items():
        median = statistics.median(times)
        is_ours = not what.startswith("openssl")
        verdict = ("met" if median <= target else "MISSED") if is_ours else ""
        spread = f"{min(times) * 1000:.0f} to {max(times) * 1000:.0f} ms"
        rows.append([what, f"{median * 1000:.0f} ms", f"{median / openssl:.2f}", verdict, f"{len(times)}: {spread}"])
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}, load {load}")
    print(
        f"{len(tree.files)} files, {tree.size / 1e6:.1f} MB; target {FACTOR} x openssl + {EXTRA * 1000:.0f} ms: ",
        end="",
    )
    print(f"{target * 1000:.0f} ms\n")
    columns = ["what", "median", "to openssl", "target", "runs"]
    terminal.print_table(columns, rows, color=terminal.wants_color(os.environ, tty=sys.stdout.isatty()))


if __name__ == "__main__":
    main(sys.argv[1:])
