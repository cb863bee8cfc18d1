"""NVML: the one module that asks it, through nvidia-ml-py: temperatures, clocks, what slows them down, and memory.

The binding is an extra of nvllm (``nvllm[gpu]``), imported when a gate asks: a host without a GPU needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, Literal, TypeAlias

REASONS: Mapping[int, str] = MappingProxyType(
    {
        0x001: "GPU idle",
        0x002: "applications clocks setting",
        0x004: "software power cap",
        0x008: "hardware slowdown",
        0x010: "sync boost",
        0x020: "software thermal slowdown",
        0x040: "hardware thermal slowdown",
        0x080: "hardware power brake",
        0x100: "display clock setting",
    }
)
"""Bits of NVML's clocks event reasons, which it called throttle reasons before."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment. Degrees are Celsius, clocks MHz; None is what this GPU does not tell."""

    index: int
    uuid: str
    temperature: int | None
    slowdown: int | None
    """Degrees at which the hardware slows its clocks down."""
    clock: int | None
    reasons: int | None
    """Bits of `REASONS`."""
    memory: int | None = None
    """Bytes in use."""


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """The DRIVER's version, the newest CUDA that it runs, and the GPUS."""

    driver: str
    cuda: str
    gpus: tuple[GpuReading, ...]


NvmlProblemKind: TypeAlias = Literal["no binding", "no driver", "error"]


@dataclass(frozen=True, slots=True)
class NvmlProblem:
    """Why there is no reading: no nvidia-ml-py, no driver, or an error, which TEXT says."""

    kind: NvmlProblemKind
    text: str


def read() -> NvmlReading | NvmlProblem:
    """Return what NVML says now."""
    try:
        import pynvml
    except ImportError:
        return NvmlProblem("no binding", "the Python package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        return NvmlProblem("no driver", str(error))
    except pynvml.NVMLError as error:
        return NvmlProblem("error", str(error))
    try:
        return _reading(pynvml)
    except pynvml.NVMLError as error:
        return NvmlProblem("error", str(error))
    finally:
        pynvml.nvmlShutdown()


def memory_in_use() -> int | None:
    """Return the bytes in use on all GPUs together, None if NVML does not say it, as where they share the host's."""
    reading = read()
    gpus = () if isinstance(reading, NvmlProblem) else reading.gpus
    return sum(gpu.memory for gpu in gpus if gpu.memory is not None) or None


def _reading(nvml: ModuleType) -> NvmlReading:
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
    gpus = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    # 13000 is 13.0, and 13020 is 13.2: NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR of nvml.h.
    return NvmlReading(_text(nvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}", gpus)


def _gpu(nvml: ModuleType, index: int) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def figure(ask: Callable[[], Any]) -> int | None:
        try:
            return int(ask())
        except nvml.NVMLError:  # not supported by this GPU, or not known to this driver
            return None

    return GpuReading(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        figure(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        figure(lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)),
        figure(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        figure(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        figure(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
    )


def _text(value: str | bytes) -> str:
    """Return VALUE, which older bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
