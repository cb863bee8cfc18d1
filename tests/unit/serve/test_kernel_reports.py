"""What serves of blessed caches report as missing, as it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.serve.kernel_reports import KernelReports
from nvllm.serve.timeline import MissingKernel

CONV = MissingKernel("ABC", "_causal_conv1d_fwd_kernel", 5.0, "n: 1", ("cmpl-a-0",))
SLOTS = MissingKernel("DEF", "_compute_slot_mapping_kernel", 6.0)


def test_what_is_reported_is_kept_by_serve_hash_until_it_is_cleared(tmp_path: Path) -> None:
    reports = KernelReports(tmp_path / "kernels")
    assert reports.read("a" * 64) == ()
    reports.add("a" * 64, [SLOTS])
    reports.add("a" * 64, [CONV, SLOTS])
    reports.add("b" * 64, [SLOTS])
    assert reports.read("a" * 64) == (CONV, SLOTS)
    reports.clear("a" * 64)
    assert (reports.read("a" * 64), reports.read("b" * 64)) == ((), (SLOTS,))
    reports.clear("a" * 64)


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"key": "A"}]', "null"])
def test_a_report_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{'a' * 64}.json").write_text(text)
    reports = KernelReports(tmp_path)
    assert reports.read("a" * 64) == ()
    reports.add("a" * 64, [CONV])
    assert reports.read("a" * 64) == (CONV,)
