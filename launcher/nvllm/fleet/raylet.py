"""The Ray that started a worker: what it was told of memory, as far as the worker's environment says.

With unified memory a model on the GPU fills the memory of the host, and that is where Ray's memory monitor ends what it
started: the trial would be lost on every machine, after the hours that it took to come so far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from nvllm.core.refusal import Refusal
from nvllm.host.facts import Gpu

MemoryMonitor = Literal["on", "off", "unknown"]

_STARTED = "RAY_RAYLET_PID"
_MONITOR = "RAY_memory_monitor_refresh_ms"


def memory_monitor(environment: Mapping[str, str]) -> MemoryMonitor:
    """Return whether the Ray that gave this process its ENVIRONMENT watches memory; `unknown` if no Ray did."""
    if _STARTED not in environment:
        return "unknown"
    return "off" if environment.get(_MONITOR, "").strip() == "0" else "on"


def against(environment: Mapping[str, str], gpus: Collection[Gpu]) -> list[Refusal]:
    """Return why a host with GPUS tries nothing for the Ray that gave this process its ENVIRONMENT."""
    if memory_monitor(environment) != "on" or not any(gpu.unified for gpu in gpus):
        return []
    setting = environment.get(_MONITOR, "")
    cure = f"ray stop && {_MONITOR}=0 ray start --address=HEAD:6379 --object-store-memory=100000000"
    described = f"{_MONITOR}={setting}" if setting else f"no {_MONITOR}: the memory monitor is on"
    return [Refusal("NV347", "Ray on this host, whose memory is unified", f"{_MONITOR}=0", described, cure)]
