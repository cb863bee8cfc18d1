"""What Ray was told of memory, and whether a host with unified memory takes trials from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nvllm.fleet import raylet
from support.host_samples import GPU
from support.rows import each_row

STARTED = {"RAY_RAYLET_PID": "17"}
OFF = {**STARTED, "RAY_memory_monitor_refresh_ms": "0"}
ON = {**STARTED, "RAY_memory_monitor_refresh_ms": "250"}


@each_row(
    ("environment", "told"),
    [
        ({}, "unknown"),
        ({"RAY_memory_monitor_refresh_ms": "0"}, "unknown"),
        (STARTED, "on"),
        (ON, "on"),
        (OFF, "off"),
    ],
)
def test_whether_ray_watches_memory(environment: Mapping[str, str], told: str) -> None:
    assert raylet.memory_monitor(environment) == told


@each_row(
    ("environment", "found"),
    [
        (STARTED, ["no RAY_memory_monitor_refresh_ms: the memory monitor is on"]),
        (ON, ["RAY_memory_monitor_refresh_ms=250"]),
        (OFF, []),
        ({}, []),
    ],
)
def test_unified_memory_wants_no_monitor(environment: Mapping[str, str], found: list[str]) -> None:
    own = replace(GPU, name="NVIDIA H100 PCIe")
    assert [one.found for one in raylet.against(environment, [GPU])] == found
    assert [one.found for one in raylet.against(environment, [own, GPU])] == found
    assert raylet.against(environment, [own]) == []
    assert raylet.against(environment, []) == []
