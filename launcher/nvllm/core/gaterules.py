"""The gates of the hardware that a profile may require, as frozen values; `host/gates.py` runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from nvllm.core.fields import Rule, Size

_Days = Annotated[int, Rule(minimum=1, maximum=3650)]
_Degrees = Annotated[int, Rule(minimum=1, maximum=200)]
_Milliseconds = Annotated[int, Rule(minimum=1, maximum=60_000)]

DEFAULTS: Mapping[str, int] = MappingProxyType(
    {"swap": 2**30, "gpu-temperature": 85, "host-temperature": 95, "p50": 20, "p99": 200}
)
"""What a hardware gate is held against, by the names of the command's options: bytes, degrees Celsius, milliseconds."""


@dataclass(frozen=True, slots=True)
class MemoryGateRule:
    """A memory gate that the host must have passed: at most MAX_AGE days ago, with a band of at least BAND bytes."""

    max_age: _Days
    """Days for which a run of the gate counts."""
    band: Size
    """The least memory that the run must have tested at once."""
    swap: Size = DEFAULTS["swap"]
    """The most bytes of swap that were in use before."""


@dataclass(frozen=True, slots=True)
class ThermalGateRule:
    """A thermal gate that the host must have passed, at most MAX_AGE days ago."""

    max_age: _Days
    """Days for which a run of the gate counts."""
    gpu_temperature: _Degrees = DEFAULTS["gpu-temperature"]
    """The most degrees Celsius of a GPU."""
    host_temperature: _Degrees = DEFAULTS["host-temperature"]
    """The most degrees Celsius of the host's own sensors."""


@dataclass(frozen=True, slots=True)
class DiskGateRule:
    """A disk gate that the host must have passed, at most MAX_AGE days ago."""

    max_age: _Days
    """Days for which a run of the gate counts."""
    p50: _Milliseconds = DEFAULTS["p50"]
    """The most milliseconds of half of the writes."""
    p99: _Milliseconds = DEFAULTS["p99"]
    """The most milliseconds of 99 % of the writes."""


@dataclass(frozen=True, slots=True)
class GateRules:
    """The gates of the hardware that a profile requires of its host; see host/gates.py."""

    memory: MemoryGateRule | None = None
    thermal: ThermalGateRule | None = None
    disk: DiskGateRule | None = None
