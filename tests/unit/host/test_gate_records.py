"""Records of gates in the state directory: written whole, read back, and never trusted if anything is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvllm.core import documents
from nvllm.core.gaterules import GateRules
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.host import gate_records, gates
from nvllm.host.gate_records import Measured
from nvllm.host.gates import FORM, GateCheck
from support.gate_samples import FACTS, HERE, PASSED, record


def problem(directory: Path) -> str:
    (found,) = gate_records.filed(directory)
    assert found.record is None
    return found.problem


def test_what_is_written_is_read_back_oldest_first(tmp_path: Path) -> None:
    later = record(measured="2026-11-18T00:00:00Z", outcome="failed")
    paths = [gate_records.write(tmp_path / "gates", one) for one in (later, PASSED)]
    assert [path.name for path in paths] == ["memory-20261118T000000Z.json", "memory-20261117T122640Z.json"]
    assert [one.record for one in gate_records.filed(tmp_path / "gates")] == [PASSED, later]
    assert paths[0].stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "gates").stat().st_mode & 0o777 == 0o700


def test_two_of_one_second_are_both_kept_in_order(tmp_path: Path) -> None:
    wanted = [record(kernel=str(number)) for number in range(12)]
    for one in wanted:
        gate_records.write(tmp_path, one)
    assert [one.record for one in gate_records.filed(tmp_path)] == wanted


def test_no_directory_has_no_records(tmp_path: Path) -> None:
    assert gate_records.filed(tmp_path / "gates") == ()


def test_a_run_says_when_where_and_what(tmp_path: Path) -> None:
    def measure(results: Measured) -> None:
        results.checks.append(GateCheck("p99", "passed", "1", "0"))

    found, path = gate_records.recorded("disk", FACTS, tmp_path, Silent(), measure)
    assert [one.record for one in gate_records.filed(path.parent)] == [found]
    assert (found.gate, found.outcome, found.machine) == ("disk", "passed", HERE)
    assert found.kernel == os.uname().release


@pytest.mark.parametrize(("state", "outcome"), [("passed", "interrupted"), ("failed", "failed")])
def test_an_interrupted_run_is_a_record(tmp_path: Path, state: gates.CheckState, outcome: str) -> None:
    """Of each gate, as docs/gates.md says; a fault that was found before stays one."""

    def measure(results: Measured) -> None:
        results.checks.append(GateCheck("p50", state, "1", "0"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gate_records.recorded("disk", FACTS, tmp_path, Silent(), measure)
    (filed,) = gate_records.filed(tmp_path)
    assert filed.record is not None
    assert filed.record.outcome == outcome


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-40], "Unterminated"),
        (lambda data: b"", "Expecting"),
        (lambda data: data.replace(b'"faults": 0', b'"faults": -1'), "-1"),
        (lambda data: data.replace(b'"passed"', b'"great"', 1), '"great"'),
        (lambda data: data.replace(b'"memory"', b'"disk"', 1), ""),
        (
            lambda data: data.replace(b"2026-11-17T12:26:40Z", b"2026-11-18T12:26:40Z"),
            "its name is that of another run",
        ),
        (lambda data: data + b" ", "the same content in another layout"),
    ],
)
def test_a_damaged_record_is_none(tmp_path: Path, damage: object, said: str) -> None:
    assert callable(damage)
    path = gate_records.write(tmp_path, PASSED)
    path.write_bytes(damage(documents.encode(FORM, PASSED)))
    assert said in problem(tmp_path)


def test_a_link_and_a_day_that_is_none_are_no_records(tmp_path: Path) -> None:
    elsewhere = gate_records.write(tmp_path / "elsewhere", PASSED)
    (tmp_path / "gates").mkdir()
    (tmp_path / "gates" / elsewhere.name).symlink_to(elsewhere)
    assert problem(tmp_path / "gates")
    never = record(measured="2026-02-30T00:00:00Z")
    gate_records.write(tmp_path / "never", never)
    assert "day is out of range" in problem(tmp_path / "never")


def test_other_files_are_not_looked_at(tmp_path: Path) -> None:
    for name in ("notes.json", "memory-now.json", "fan-20261117T122640Z.json", ".memory-20261117T122640Z.json.x"):
        (tmp_path / name).write_text("{")
    assert gate_records.filed(tmp_path) == ()


def test_a_record_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gates").write_text("")
    with pytest.raises(Refused) as caught:
        gate_records.write(tmp_path / "gates", PASSED)
    assert [one.code for one in caught.value.refusals] == ["NV920"]


def test_every_gate_of_the_spec_has_a_name() -> None:
    assert set(GateRules.__dataclass_fields__) == {*gates.GATES}
