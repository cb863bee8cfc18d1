"""A stand-in for nvidia-ml-py's module ``pynvml``: there is no GPU here, so nothing of this was ever a real answer."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818 - the binding's own name
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818
    pass


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801, N818
    pass


class FakeNvml(ModuleType):
    """A GB10 at so many degrees, with REASONS; what is None is not supported. ERROR is raised by its init."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_CLOCK_SM = 1

    def __init__(
        self,
        degrees: int | None = 41,
        reasons: int | None = 1,
        *,
        slowdown: int | None = None,
        error: Exception | None = None,
        broken: bool = False,
        memory: int | None = None,
    ) -> None:
        super().__init__("pynvml")
        self.degrees, self.reasons, self.slowdown, self.error, self.broken = degrees, reasons, slowdown, error, broken
        self.memory, self.open = memory, 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.error is not None:
            raise self.error
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        if self.broken:
            raise NVMLError("GPU is lost")
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return b"GPU-6f1c"  # as older bindings give it

    def _told(self, value: int | None) -> int:
        if value is None:
            raise NVMLError_NotSupported("Not Supported")
        return value

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:  # noqa: N802
        return self._told(self.degrees)

    def nvmlDeviceGetTemperatureThreshold(self, handle: int, kind: int) -> int:  # noqa: N802
        return self._told(self.slowdown)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return 2418

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=self._told(self.memory))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return self._told(self.reasons)


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> FakeNvml:
    """Let FAKE be the module that is imported as ``pynvml``."""
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake
