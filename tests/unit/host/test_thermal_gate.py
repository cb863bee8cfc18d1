"""The thermal gate: what fails, what passes, and what was not measured and is said so. NVML is a stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from unittest import mock

import pytest

from nvllm.core import extras
from nvllm.core.progress import Silent
from nvllm.host import gates, nvml, sensors, thermal_gate
from nvllm.host.facts import HostFacts
from nvllm.host.gate_records import Measured
from nvllm.host.nvml import GpuReading, NvmlProblem, NvmlProblemKind, NvmlReading
from nvllm.host.thermal_gate import ThermalLimits
from support.gate_samples import FACTS

LIMITS = ThermalLimits(2, 85, 95)
GPU = GpuReading(0, "GPU-6f1c", 41, None, 2418, 1)
NO_GPUS = replace(FACTS, gpus=())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thermal_gate, "PAUSE", 0.0)


def run(
    *readings: GpuReading | NvmlProblem, host: tuple[Mapping[str, float], ...] = ({},), facts: HostFacts = FACTS
) -> Measured:
    """Return what is found of READINGS and HOST, one each second, the last one again and again."""
    left, degrees = list(readings), list(host)

    def gpus() -> NvmlReading | NvmlProblem:
        one = left.pop(0) if len(left) > 1 else left[0]
        return one if isinstance(one, NvmlProblem) else NvmlReading("580.95.05", "13.0", (one,))

    def seen() -> Mapping[str, float]:
        return degrees.pop(0) if len(degrees) > 1 else degrees[0]

    results = Measured()
    with mock.patch.object(nvml, "read", gpus), mock.patch.object(sensors, "temperatures", seen):
        thermal_gate.run(LIMITS, facts, results, Silent())
    return results


def states(found: Measured) -> dict[str, str]:
    return {one.name: one.state for one in found.checks}


def test_a_cool_idle_gpu_passes() -> None:
    found = run(GPU, host=({"acpitz": 50.0},))
    assert states(found) == dict.fromkeys(
        ("GPU 0 temperature", "GPU 0 clocks", "container toolkit", "acpitz"), "passed"
    )
    assert found.versions == {"driver": "580.95.05", "CUDA of the driver": "13.0", "container toolkit": "1.18.0"}
    assert found.figures == {"gpu0_degrees_celsius": 41, "gpu0_clock_mhz": 2418, "host_degrees_celsius": 50}


@pytest.mark.parametrize("degrees", [86, 84])
def test_the_hottest_moment_counts_and_a_gpu_may_slow_down_sooner(degrees: int) -> None:
    found = run(GPU, replace(GPU, temperature=degrees, slowdown=84 if degrees == 84 else None), replace(GPU))
    assert states(found)["GPU 0 temperature"] == ("failed" if degrees == 86 else "passed")
    gpu = replace(GPU, temperature=degrees, slowdown=84)
    assert states(run(gpu))["GPU 0 temperature"] == "failed"


@pytest.mark.parametrize("bit", [0x008, 0x020, 0x040, 0x080])
def test_what_slows_clocks_down_at_any_moment_fails(bit: int) -> None:
    found = run(GPU, replace(GPU, reasons=bit), GPU)
    assert states(found)["GPU 0 clocks"] == "failed"


@pytest.mark.parametrize(("bits", "said"), [(0, "nothing"), (0x004, "software power cap"), (0x800, "reasons 0x800")])
def test_other_reasons_are_shown_and_pass(bits: int, said: str) -> None:
    (clocks,) = (one for one in run(replace(GPU, reasons=bits)).checks if one.name == "GPU 0 clocks")
    assert clocks.state == "passed"
    assert clocks.found.startswith(said)


def test_a_gpu_that_tells_nothing_is_no_pass() -> None:
    found = run(replace(GPU, temperature=None, reasons=None))
    assert gates.outcome(found.checks) == "not measured"


@pytest.mark.parametrize("kind", ["no binding", "no driver"])
def test_a_host_without_gpu_and_sensors_has_not_passed(kind: NvmlProblemKind) -> None:
    found = run(NvmlProblem(kind, "nothing"), facts=NO_GPUS)
    assert states(found) == {"GPUs": "absent", "host temperature": "absent"}
    assert all("not measured" in one.found for one in found.checks)
    assert gates.outcome(found.checks) == "not measured"


def test_a_host_without_gpu_passes_by_its_sensors() -> None:
    found = run(NvmlProblem("no driver", "none"), host=({"acpitz": 50.0}, {"acpitz": 94.0}, {}), facts=NO_GPUS)
    assert gates.outcome(found.checks) == "passed"
    assert found.figures == {"host_degrees_celsius": 94.0}
    hot = run(NvmlProblem("no driver", "none"), host=({"acpitz": 96.0}, {"acpitz": 50.0}), facts=NO_GPUS)
    assert gates.outcome(hot.checks) == "failed"


@pytest.mark.parametrize("kind", ["no binding", "no driver", "error"])
def test_a_gpu_that_nvml_cannot_be_asked_about_is_not_measured(kind: NvmlProblemKind) -> None:
    found = run(NvmlProblem(kind, "nothing"), host=({"acpitz": 50.0},))
    assert gates.outcome(found.checks) == "not measured"
    assert (extras.installing("gpu") in found.checks[0].found) is (kind == "no binding")


def test_the_toolkit_is_told_also_where_nvml_is_silent() -> None:
    silent = NvmlProblem("no binding", "nothing")
    assert run(silent).versions == {"container toolkit": "1.18.0"}
    assert states(run(silent, facts=replace(FACTS, toolkit=None)))["container toolkit"] == "absent"


def test_an_old_toolkit_fails() -> None:
    assert states(run(GPU, facts=replace(FACTS, toolkit="1.17.7")))["container toolkit"] == "failed"
    assert states(run(GPU, facts=replace(FACTS, toolkit=None)))["container toolkit"] == "absent"
