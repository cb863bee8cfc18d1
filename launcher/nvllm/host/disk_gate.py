"""The disk gate: how long a small write takes until it is on the disk (fsync), where nvllm keeps its caches."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import durable, paths
from nvllm.core.progress import Progress
from nvllm.core.statistics import percentile
from nvllm.host.gate_records import Measured
from nvllm.host.gates import decided

BLOCK = 4096
"""Bytes of each write: a page, the least that a file system writes. The wait is then for the disk, not for data."""


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """What is asked: so many WRITES of 4 KiB, and the most milliseconds that half of them, and 99 %, may take."""

    writes: int
    p50: float
    p99: float


def run(limits: DiskLimits, directory: Path, results: Measured, progress: Progress) -> None:
    """Measure the file system of DIRECTORY, and add to RESULTS. Raises Refused NV920 if it takes no file."""
    results.limits = {"p50": limits.p50, "p99": limits.p99}
    took = latencies(directory, limits.writes, progress)
    for name, percent in (("p50", 50), ("p99", 99)):
        latency, most = percentile(took, percent), results.limits[name]
        limit = f"at most {most:g} ms"
        results.checks.append(decided(f"fsync {name}", limit, f"{latency:.2f} ms", passed=latency <= most))
        results.figures[f"fsync_{name}_ms"] = latency
    results.figures["fsync_max_ms"] = max(took)


def latencies(directory: Path, writes: int, progress: Progress) -> list[float]:
    """Return the milliseconds of each of so many WRITES into a file in DIRECTORY, which is removed."""
    block, took = os.urandom(BLOCK), []
    with durable.writing(directory, "NV920"):
        paths.ensure(directory)
        with (
            progress.task(f"fsync in {directory}", writes, "writes") as task,
            # A file without a name: a kill leaves nothing behind.
            tempfile.TemporaryFile(dir=directory, buffering=0) as file,
        ):
            for _ in range(writes):
                began = time.perf_counter()
                os.write(file.fileno(), block)
                os.fsync(file.fileno())
                took.append((time.perf_counter() - began) * 1000)
                task.advance(1)
    return took
