"""The thermal gate: temperatures, and what slows clocks down, over some seconds; versions of driver and toolkit."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvllm.core import extras
from nvllm.core.progress import Progress
from nvllm.host import checks, engines, nvml, sensors
from nvllm.host.facts import HostFacts
from nvllm.host.gate_records import Measured
from nvllm.host.gates import GateCheck, decided
from nvllm.host.nvml import GpuReading, NvmlProblem, NvmlReading

SLOWED = 0x008 | 0x020 | 0x040 | 0x080
"""Reasons that fail: the hardware, its temperature or its power supply slows the clocks down. A power cap does not."""

PAUSE = 1.0
"""Seconds between two looks."""

_SHOWN_GPUS = "GPUs that NVML shows"


@dataclass(frozen=True, slots=True)
class ThermalLimits:
    """What is asked: SECONDS of looking, once a second, and the most degrees Celsius of a GPU and of the host."""

    seconds: int
    gpu: int
    host: int


def run(limits: ThermalLimits, facts: HostFacts, results: Measured, progress: Progress) -> None:
    """Look at the GPUs and the sensors of the host of FACTS, and add what was found to RESULTS."""
    results.limits = {"gpu-temperature": limits.gpu, "host-temperature": limits.host}
    gpus: dict[str, list[GpuReading]] = {}
    hottest: dict[str, float] = {}
    reading: NvmlReading | NvmlProblem | None = None
    with progress.task("temperatures", limits.seconds + 1, "readings") as task:
        for number in range(limits.seconds + 1):
            if number:
                time.sleep(PAUSE)
            if not isinstance(reading, NvmlProblem):
                reading = nvml.read()
            if isinstance(reading, NvmlReading):
                for gpu in reading.gpus:
                    gpus.setdefault(gpu.uuid, []).append(gpu)
            for name, degrees in sensors.temperatures().items():
                hottest[name] = max(hottest.get(name, degrees), degrees)
            task.advance(1)
    if isinstance(reading, NvmlProblem):
        results.checks.append(_no_gpus(reading, facts))
    elif not gpus:
        results.checks.append(GateCheck("GPUs", "absent", _SHOWN_GPUS, "not measured: no GPU, by NVML"))
    if isinstance(reading, NvmlReading):
        results.versions = {"driver": reading.driver, "CUDA of the driver": reading.cuda}
        for readings in gpus.values():
            _gpu(limits, readings, results)
    if isinstance(reading, NvmlReading) or facts.gpus:
        results.checks.append(_toolkit(facts, results))
    _host(limits, hottest, results)


def _no_gpus(problem: NvmlProblem, facts: HostFacts) -> GateCheck:
    """Return why no GPU was looked at: there is none, or NVML cannot be asked about the one that is there."""
    if facts.gpus or facts.gpu_problem is not None or problem.kind == "error":
        cure = f"; install it: {extras.installing('gpu')}" if problem.kind == "no binding" else ""
        return GateCheck("GPUs", "not measured", _SHOWN_GPUS, problem.text + cure)
    return GateCheck("GPUs", "absent", _SHOWN_GPUS, "not measured: no GPU, by nvidia-smi and NVML")


def _gpu(limits: ThermalLimits, readings: Sequence[GpuReading], results: Measured) -> None:
    gpu = readings[0]
    name = f"GPU {gpu.index}"
    degrees = [reading.temperature for reading in readings if reading.temperature is not None]
    # At its own threshold a GPU slows down already, so the threshold fails (docs/gates.md).
    most = limits.gpu if gpu.slowdown is None else min(limits.gpu, gpu.slowdown - 1)
    results.checks.append(_below(f"{name} temperature", max(degrees, default=None), most))
    if degrees:
        results.figures[f"gpu{gpu.index}_degrees_celsius"] = float(max(degrees))
    clocks = [reading.clock for reading in readings if reading.clock is not None]
    if clocks:
        results.figures[f"gpu{gpu.index}_clock_mhz"] = float(max(clocks))
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
    limit = f"none of: {', '.join(_reasons(SLOWED))}"
    if not reasons:
        results.checks.append(GateCheck(f"{name} clocks", "not measured", limit, "this GPU gives no reasons"))
        return
    together = functools.reduce(operator.or_, reasons)
    slowing = ", ".join(_reasons(together)) or "nothing slows them down"
    results.checks.append(decided(f"{name} clocks", limit, slowing, passed=not together & SLOWED))


def _below(name: str, degrees: float | None, most: int) -> GateCheck:
    limit = f"at most {most} degrees Celsius"
    if degrees is None:
        return GateCheck(name, "not measured", limit, "it tells no temperature")
    return decided(name, limit, f"{degrees:.0f} degrees Celsius", passed=degrees <= most)


def _reasons(bits: int) -> list[str]:
    known = [text for bit, text in nvml.REASONS.items() if bits & bit]
    other = bits & ~sum(nvml.REASONS)
    return [*known, *([f"reasons {other:#x}"] if other else [])]


def _toolkit(facts: HostFacts, results: Measured) -> GateCheck:
    """Add the version of the container toolkit to RESULTS, and return whether it has the minimum of `checks`."""
    name, limit = "container toolkit", f"{checks.MINIMUM_TOOLKIT} or newer"
    if facts.toolkit is None:
        return GateCheck(name, "absent", limit, facts.toolkit_problem or "no nvidia-ctk on PATH")
    results.versions[name] = facts.toolkit
    old = engines.older(facts.toolkit, checks.MINIMUM_TOOLKIT)
    return decided(name, limit, facts.toolkit, passed=not old)


def _host(limits: ThermalLimits, host: Mapping[str, float], results: Measured) -> None:
    if not host:
        limit = f"at most {limits.host} degrees Celsius"
        problem = "not measured: no sensor in /sys/class/thermal and /sys/class/hwmon"
        results.checks.append(GateCheck("host temperature", "absent", limit, problem))
        return
    for name, degrees in host.items():
        results.checks.append(_below(name, degrees, limits.host))
    results.figures["host_degrees_celsius"] = max(host.values())
