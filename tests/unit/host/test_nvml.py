"""The edge to NVML, on a stand-in for the library. No test here has seen a GPU."""

from __future__ import annotations

import sys

import pytest

from nvllm.host import nvml
from nvllm.host.nvml import GpuReading, NvmlProblem, NvmlProblemKind, NvmlReading
from support import fake_nvml
from support.fake_nvml import FakeNvml, NVMLError, NVMLError_DriverNotLoaded, NVMLError_LibraryNotFound


def test_what_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_nvml.install(monkeypatch, FakeNvml(41, 1, slowdown=95))
    gpu = GpuReading(0, "GPU-6f1c", 41, 95, 2418, 1)
    assert nvml.read() == NvmlReading("580.95.05", "13.0", (gpu,))
    assert fake.open == 0


def test_what_a_gpu_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch, FakeNvml(None, None))
    found = nvml.read()
    assert isinstance(found, NvmlReading)
    assert (found.gpus[0].temperature, found.gpus[0].slowdown, found.gpus[0].reasons) == (None, None, None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NVMLError_LibraryNotFound("NVML Shared Library Not Found"), "no driver"),
        (NVMLError_DriverNotLoaded("Driver Not Loaded"), "no driver"),
        (NVMLError("Insufficient Permissions"), "error"),
    ],
)
def test_why_there_is_no_reading(monkeypatch: pytest.MonkeyPatch, error: NVMLError, kind: NvmlProblemKind) -> None:
    fake_nvml.install(monkeypatch, FakeNvml(error=error))
    assert nvml.read() == NvmlProblem(kind, str(error))


def test_a_gpu_that_is_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_nvml.install(monkeypatch, FakeNvml(broken=True))
    assert nvml.read() == NvmlProblem("error", "GPU is lost")
    assert fake.open == 0


def test_without_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = nvml.read()
    assert isinstance(found, NvmlProblem)
    assert found.kind == "no binding"
