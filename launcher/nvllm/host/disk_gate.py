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
from nvllm.host.gates import GateCheck

BLOCK = 4096
"""Bytes of each write: a page, the least that a file system writes. The wait is then for the disk, not for data."""


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """What is asked: so many WRITES of 4 KiB, and the most milliseconds that half of them, and 99 %, may take."""

    writes: int
    p50: float
    p99: float


def run(limits: DiskLimits, directory: Path, progress: Progress) -> Measured:
    """Measure the file system of DIRECTORY, and return what was found. Raises Refused NV920 if it takes no file."""
    took = latencies(directory, limits.writes, progress)
    p50, p99 = percentile(took, 50), percentile(took, 99)
    checks = [_within("fsync p50", p50, limits.p50), _within("fsync p99", p99, limits.p99)]
    figures = {"fsync_p50_ms": p50, "fsync_p99_ms": p99, "fsync_max_ms": max(took)}
    return Measured(checks, limits={"p50": limits.p50, "p99": limits.p99}, figures=figures)


def latencies(directory: Path, writes: int, progress: Progress) -> list[float]:
    """Return the milliseconds of each of so many WRITES into a file in DIRECTORY, which is removed."""
    block, took = os.urandom(BLOCK), []
    with durable.writing(directory, "NV920"):
        paths.ensure(directory)
        with (
            progress.task(f"fsync in {directory}", writes, "writes") as task,
            tempfile.TemporaryFile(dir=directory, buffering=0) as file,
        ):
            for _ in range(writes):
                began = time.perf_counter()
                os.write(file.fileno(), block)
                os.fsync(file.fileno())
                took.append((time.perf_counter() - began) * 1000)
                task.advance(1)
    return took


def _within(name: str, took: float, most: float) -> GateCheck:
    return GateCheck(name, "passed" if took <= most else "failed", f"at most {most:g} ms", f"{took:.2f} ms")
