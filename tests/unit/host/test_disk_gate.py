"""The disk gate: real writes, and limits that decide."""

from __future__ import annotations

import os
import posix
from pathlib import Path

import pytest

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.host import disk_gate
from nvllm.host.disk_gate import DiskLimits
from nvllm.host.gate_records import Measured


def test_real_writes_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", posix.fsync)  # in every other test nobody waits for the disk
    found = Measured()
    disk_gate.run(DiskLimits(20, 60_000, 60_000), tmp_path / "cache", found, Silent())
    assert [one.state for one in found.checks] == ["passed", "passed"]
    assert 0 < found.figures["fsync_p50_ms"] <= found.figures["fsync_p99_ms"] <= found.figures["fsync_max_ms"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_slow_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_gate, "latencies", lambda *_: [1.0] * 98 + [300.0, 500.0])
    found = Measured()
    disk_gate.run(DiskLimits(100, 20, 200), tmp_path, found, Silent())
    assert [(one.name, one.state, one.limit, one.found) for one in found.checks] == [
        ("fsync p50", "passed", "at most 20 ms", "1.00 ms"),
        ("fsync p99", "failed", "at most 200 ms", "302.00 ms"),
    ]


def test_a_directory_that_takes_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(Refused) as caught:
        disk_gate.run(DiskLimits(10, 1, 1), tmp_path / "cache", Measured(), Silent())
    assert [one.code for one in caught.value.refusals] == ["NV920"]
