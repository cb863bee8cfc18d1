"""The memory gate with a stand-in for memtester: bands, memory that is there, and an interrupt."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from nvllm.core.progress import Silent
from nvllm.core.spec import MEMORY_FLOOR
from nvllm.host import gate_records, memory_gate
from nvllm.host.gate_records import Measured
from nvllm.host.gates import GateRecord
from nvllm.host.memory_gate import MemoryLimits
from nvllm.host.memtester import Memtester
from support.gate_samples import BROKEN, FACTS, OK, put_memtester

MIB, GIB = 2**20, 2**30
MEMINFO = {"MemAvailable": 8 * GIB, "SwapTotal": 4 * GIB, "SwapFree": 3 * GIB}


@pytest.fixture(autouse=True)
def meminfo(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the kernel says of memory; a test may change it."""
    said = dict(MEMINFO)
    monkeypatch.setattr(memory_gate, "memory", lambda: said)
    return said


def limits(*bands: int, swap: int = GIB) -> MemoryLimits:
    return MemoryLimits(bands, 1, swap)


def run(tmp_path: Path, asked: MemoryLimits, *lines: str, status: int = 0) -> GateRecord:
    tester = Memtester(str(put_memtester(tmp_path, *lines, status=status)), tmp_path / "ledger")
    record, path = recorded(tmp_path, asked, tester)
    (filed,) = gate_records.filed(path.parent)
    assert filed.record == record
    return record


def recorded(tmp_path: Path, asked: MemoryLimits, tester: Memtester) -> tuple[GateRecord, Path]:
    def measure(results: Measured) -> None:
        memory_gate.run(asked, tester, results, Silent())

    return gate_records.recorded("memory", FACTS, tmp_path / "gates", Silent(), measure)


def test_bands_without_a_fault_pass(tmp_path: Path) -> None:
    found = run(tmp_path, limits(64 * MIB, GIB), OK)
    assert (found.outcome, found.largest, found.versions) == ("passed", GIB, {"memtester": "4.6.0"})
    assert [(one.name, one.state) for one in found.checks] == [
        ("MemAvailable", "passed"),
        ("swap in use", "passed"),
        ("band 64M", "passed"),
        ("band 1G", "passed"),
    ]
    assert found.figures["swap_used_bytes"] == GIB


def test_faults_fail_by_test_and_address(tmp_path: Path) -> None:
    found = run(tmp_path, limits(GIB), *BROKEN, status=4)
    assert (found.outcome, found.largest, found.bands[0].faults) == ("failed", 0, 3)
    (last,) = found.checks[-1:]
    shown = "Solid Bits at 0x0000000000abc008, Solid Bits at 0x0000000000abc010, Checkerboard at 0x0000000000abc008"
    assert last.found.startswith(f"3 faults ({shown}) in 3 tests")


def test_swap_in_use_fails_beyond_its_limit(tmp_path: Path) -> None:
    found = run(tmp_path, limits(GIB, swap=GIB - MIB), OK)
    assert found.outcome == "failed"
    assert (found.checks[1].limit, found.checks[1].found) == ("at most 1,023 MiB", "1,024 MiB")


def test_a_band_that_memtester_did_not_test_is_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path, limits(64 * MIB, GIB), OK, status=1)
    assert (found.outcome, found.bands) == ("not measured", ())


def test_memory_that_another_program_took_is_not_tested(tmp_path: Path, meminfo: dict[str, int]) -> None:
    meminfo["MemAvailable"] = GIB + MEMORY_FLOOR - 1
    found = run(tmp_path, limits(64 * MIB, GIB), OK)
    assert [one.bytes for one in found.bands] == [64 * MIB]
    assert found.outcome == "not measured"


@pytest.mark.parametrize(("lines", "outcome"), [((OK,), "interrupted"), (BROKEN, "failed")])
def test_an_interrupt_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], outcome: str
) -> None:
    """Ctrl-C comes in the second band; what the first one found stays."""
    program = put_memtester(tmp_path, *lines, status=4 if lines == BROKEN else 0)
    tester = Memtester(str(program), tmp_path / "ledger")
    tested: list[int] = []
    real = tester.test

    def second(size: int, loops: int, advance: object) -> object:
        if tested:
            raise KeyboardInterrupt
        tested.append(size)
        return real(size, loops, lambda _: None)

    monkeypatch.setattr(tester, "test", second)
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path, limits(GIB, 2 * GIB), tester)
    (filed,) = gate_records.filed(tmp_path / "gates")
    assert filed.record is not None
    assert (filed.record.outcome, len(filed.record.bands)) == (outcome, 1)


def test_what_does_not_fit_is_refused_before(meminfo: dict[str, int]) -> None:
    asked = limits(GIB, 8 * GIB, 7 * GIB + GIB // 2)
    (refusal,) = (one for one in memory_gate.unready(asked, MEMINFO) if one.code == "NV505")
    assert (refusal.where, refusal.found) == ("--bands 8G", "8,192 MiB")
    assert refusal.cure.endswith("nvllm gate memory --bands 7680M")
    assert len([one for one in memory_gate.unready(limits(GIB), {}) if one.code == "NV505"]) == 1


def test_what_may_not_be_locked_is_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 * MIB, 8 * MIB))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (refusal,) = memory_gate.unready(limits(8 * MIB, 64 * MIB), MEMINFO)
    assert (refusal.code, refusal.where, refusal.found) == ("NV518", "--bands 64M", "8 MiB")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert memory_gate.unready(limits(64 * MIB), MEMINFO) == []
