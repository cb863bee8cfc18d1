"""The thermal gate: temperatures, and what slows clocks down, over some seconds; versions of driver and toolkit."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nvllm.core import extras
from nvllm.core.progress import Progress
from nvllm.host import checks, engines, nvml, sensors
from nvllm.host.facts import HostFacts
from nvllm.host.gate_records import Measured
from nvllm.host.gates import CheckState, GateCheck
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


@dataclass(frozen=True, slots=True)
class ThermalSources:
    """Where the gate reads: the one edge to NVML, and the one to the kernel's sensors."""

    gpus: Callable[[], NvmlReading | NvmlProblem] = nvml.read
    host: Callable[[], Mapping[str, float]] = sensors.temperatures


def run(limits: ThermalLimits, facts: HostFacts, sources: ThermalSources, progress: Progress) -> Measured:
    """Look at the GPUs and the sensors of the host of FACTS, and return what was found."""
    seen: list[NvmlReading] = []
    host: dict[str, float] = {}
    problem: NvmlProblem | None = None
    with progress.task("temperatures", limits.seconds + 1, "readings") as task:
        for number in range(limits.seconds + 1):
            if number:
                time.sleep(PAUSE)
            reading = sources.gpus() if problem is None else problem
            if isinstance(reading, NvmlProblem):
                problem = reading
            else:
                seen.append(reading)
            for name, degrees in sources.host().items():
                host[name] = max(host.get(name, degrees), degrees)
            task.advance(1)
    measured = Measured(limits={"gpu-temperature": limits.gpu, "host-temperature": limits.host})
    if problem is not None:
        measured.checks.append(_no_gpus(problem, facts))
    else:
        by_uuid: dict[str, list[GpuReading]] = {}
        for gpu in (gpu for reading in seen for gpu in reading.gpus):
            by_uuid.setdefault(gpu.uuid, []).append(gpu)
        if not by_uuid:
            measured.checks.append(GateCheck("GPUs", "absent", _SHOWN_GPUS, "not measured: no GPU, by NVML"))
        for readings in by_uuid.values():
            _gpu(limits, readings, measured)
        measured.versions = {"driver": seen[0].driver, "CUDA of the driver": seen[0].cuda}
    if problem is None or facts.gpus:
        _toolkit(facts, measured)
    _host(limits, host, measured)
    return measured


def _no_gpus(problem: NvmlProblem, facts: HostFacts) -> GateCheck:
    """Return why no GPU was looked at: there is none, or NVML cannot be asked about the one that is there."""
    if facts.gpus or facts.gpu_problem is not None or problem.kind == "error":
        cure = f"; install it: {extras.installing('gpu')}" if problem.kind == "no binding" else ""
        return GateCheck("GPUs", "not measured", _SHOWN_GPUS, problem.text + cure)
    return GateCheck("GPUs", "absent", _SHOWN_GPUS, "not measured: no GPU, by nvidia-smi and NVML")


def _gpu(limits: ThermalLimits, readings: Sequence[GpuReading], measured: Measured) -> None:
    gpu = readings[0]
    name = f"GPU {gpu.index}"
    degrees = [one.temperature for one in readings if one.temperature is not None]
    most = limits.gpu if gpu.slowdown is None else min(limits.gpu, gpu.slowdown - 1)
    measured.checks.append(_below(f"{name} temperature", max(degrees, default=None), most))
    if degrees:
        measured.figures[f"gpu{gpu.index}_degrees_celsius"] = float(max(degrees))
    clocks = [one.clock for one in readings if one.clock is not None]
    if clocks:
        measured.figures[f"gpu{gpu.index}_clock_mhz"] = float(max(clocks))
    told = [one.reasons for one in readings if one.reasons is not None]
    limit = f"none of: {', '.join(_reasons(SLOWED))}"
    if not told:
        measured.checks.append(GateCheck(f"{name} clocks", "not measured", limit, "this GPU gives no reasons"))
        return
    together = functools.reduce(operator.or_, told)
    state: CheckState = "failed" if together & SLOWED else "passed"
    slowing = ", ".join(_reasons(together)) or "nothing slows them down"
    measured.checks.append(GateCheck(f"{name} clocks", state, limit, slowing))


def _below(name: str, degrees: float | None, most: int) -> GateCheck:
    limit = f"at most {most} degrees Celsius"
    if degrees is None:
        return GateCheck(name, "not measured", limit, "it tells no temperature")
    return GateCheck(name, "passed" if degrees <= most else "failed", limit, f"{degrees:.0f} degrees Celsius")


def _reasons(bits: int) -> list[str]:
    known = [text for bit, text in nvml.REASONS.items() if bits & bit]
    other = bits & ~sum(nvml.REASONS)
    return [*known, *([f"reasons {other:#x}"] if other else [])]


def _toolkit(facts: HostFacts, measured: Measured) -> None:
    """Add the version of the container toolkit, which has a minimum, as in `checks`."""
    limit = f"{checks.MINIMUM_TOOLKIT} or newer"
    if facts.toolkit is None:
        problem = facts.toolkit_problem or "no nvidia-ctk on PATH"
        measured.checks.append(GateCheck("container toolkit", "absent", limit, problem))
        return
    measured.versions["container toolkit"] = facts.toolkit
    old = engines.older(facts.toolkit, checks.MINIMUM_TOOLKIT)
    measured.checks.append(GateCheck("container toolkit", "failed" if old else "passed", limit, facts.toolkit))


def _host(limits: ThermalLimits, host: Mapping[str, float], measured: Measured) -> None:
    if not host:
        limit = f"at most {limits.host} degrees Celsius"
        problem = "not measured: no sensor in /sys/class/thermal and /sys/class/hwmon"
        measured.checks.append(GateCheck("host temperature", "absent", limit, problem))
        return
    for name, degrees in host.items():
        measured.checks.append(_below(name, degrees, limits.host))
    measured.figures["host_degrees_celsius"] = max(host.values())
