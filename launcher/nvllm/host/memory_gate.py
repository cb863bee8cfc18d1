"""The memory gate: memtester over bands of memory, with MemAvailable and swap as they were before."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass

from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal
from nvllm.core.spec import MEMORY_FLOOR
from nvllm.host.facts import memory
from nvllm.host.gate_records import Measured
from nvllm.host.gates import CheckState, GateCheck, MemoryBand, decided, size_text
from nvllm.host.memtester import TESTS, Memtester, MemtesterFailed

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What is asked: BANDS in bytes, one after the other, each so many LOOPS, and at most SWAP bytes swapped out."""

    bands: tuple[int, ...]
    loops: int
    swap: int


def unready(limits: MemoryLimits, meminfo: Mapping[str, int]) -> list[Refusal]:
    """Return why bands of LIMITS cannot be tested on a host with MEMINFO: NV505 for memory, NV518 for its locking."""
    available = meminfo.get("MemAvailable", 0)
    lockable, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    refusals = []
    for band in limits.bands:
        where = f"--bands {size_text(band)}"
        if band + MEMORY_FLOOR > available:
            expected = f"{_mib(band + MEMORY_FLOOR)} of MemAvailable: the band, and {_mib(MEMORY_FLOOR)} for the host"
            smaller = max((available - MEMORY_FLOOR) // _MIB, 1)  # `--bands` takes no 0M
            cure = f"stop what uses memory, or test less: nvllm gate memory --bands {smaller}M"
            refusals.append(Refusal("NV505", where, expected, _mib(available), cure))
        # for root the limit does not count: mlock(2)
        if os.geteuid() != 0 and lockable != resource.RLIM_INFINITY and band > lockable:
            expected = f"{_mib(band)} that this process may lock in memory (ulimit -l)"
            cure = "run it as root, or lift the limit of locked memory: see limits.conf(5), memlock"
            refusals.append(Refusal("NV518", where, expected, _mib(lockable), cure))
    return refusals


def run(limits: MemoryLimits, memtester: Memtester, results: Measured, progress: Progress) -> None:
    """Look at MemAvailable and swap, then test the bands of LIMITS with MEMTESTER; add to RESULTS as it goes."""
    _before(limits, memory(), results)
    for band in limits.bands:
        name = f"band {size_text(band)}"
        available = memory().get("MemAvailable", 0)
        if available < band + MEMORY_FLOOR:  # another program took it while the band before was tested
            limit = f"{_mib(band + MEMORY_FLOOR)} of MemAvailable"
            results.checks.append(GateCheck(name, "not measured", limit, _mib(available)))
            continue
        with progress.task(f"memtester {name}", limits.loops * TESTS, "tests") as task:
            try:
                tested = memtester.test(band, limits.loops, task.advance)
            except MemtesterFailed as error:
                results.checks.append(GateCheck(name, "not measured", "no fault", str(error)))
            else:
                results.bands.append(tested)
                results.checks.append(decided(name, "no fault", band_summary(tested), passed=not tested.faults))
        results.versions["memtester"] = memtester.version


def _before(limits: MemoryLimits, meminfo: Mapping[str, int], results: Measured) -> None:
    total = meminfo.get("SwapTotal", 0)
    swapped, available = total - meminfo.get("SwapFree", 0), meminfo.get("MemAvailable", 0)
    results.limits = {"swap": float(limits.swap)}
    results.figures = {
        "available_bytes": float(available),
        "swap_total_bytes": float(total),
        "swap_used_bytes": float(swapped),
    }
    need = max(limits.bands) + MEMORY_FLOOR
    state: CheckState = "passed" if available >= need else "not measured"
    results.checks.append(GateCheck("MemAvailable", state, f"at least {_mib(need)}", _mib(available)))
    limit = f"at most {_mib(limits.swap)}"
    results.checks.append(decided("swap in use", limit, _mib(swapped), passed=swapped <= limits.swap))


def band_summary(band: MemoryBand) -> str:
    """Return what was found in BAND, in one line, with its first faults."""
    faults = [f"{fault.test} at {fault.address}" for fault in band.listed[:3]]
    first = f" ({', '.join(faults)}{', ...' if band.faults > len(faults) else ''})" if faults else ""
    return f"{band.faults} faults{first} in {band.tests} tests, {band.loops} loops, {band.seconds:.1f} s"


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"
