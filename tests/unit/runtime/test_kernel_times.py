"""What a trace adds up to: kernels of a GPU, or operators without those that they call."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nvllm.runtime import kernel_times


def event(name: str, ts: float, dur: float, category: str = "cpu_op", tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur}


def printed(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    kernel_times.main(str(directory))
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def write(directory: Path, events: list[dict[str, Any]], name: str = "rank-0") -> Path:
    path = directory / f"{name}.123.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_an_operator_is_counted_without_those_that_it_calls() -> None:
    events = [
        event("aten::mm", 12, 5),
        event("aten::linear", 10, 10),
        event("aten::linear", 30, 4),
        event("aten::mm", 31, 1),
        event("aten::mm", 10, 3, tid=2),  # another thread: nested in nothing
        event("step", 0, 100, "user_annotation"),
        {"ph": "i", "cat": "cpu_op", "name": "instant", "ts": 1},
    ]
    found = kernel_times.added_up(events, "cpu_op")
    assert found == [("aten::linear", 2, 8.0), ("aten::mm", 3, 9.0)][::-1]
    assert sum(took for _, _, took in found) == 17  # as long as the three outermost ones


def test_kernels_of_a_gpu_come_before_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [event("aten::mm", 0, 9), event("gemm", 20, 3, "kernel"), event("gemm", 30, 2, "kernel")]
    step = event("execute_context_1(4)_generation_1(1)", 0, 50, "user_annotation")
    path = write(tmp_path, [*events, step, event("another mark", 0, 50, "user_annotation")])
    write(tmp_path, [event("gemm", 20, 1, "kernel"), step], "rank-1")
    (tmp_path / "profiler_out_0.txt").write_text("a table")
    found = printed(tmp_path, capsys)
    assert (found["gpu"], found["kernels"], found["steps"]) == (True, [["gemm", 3, 6.0]], 1)
    assert base64.b64decode(found["trace"]) == path.read_bytes()


def test_a_large_trace_is_added_up_and_not_handed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_times, "LARGEST", 10)
    write(tmp_path, [event("aten::mm", 0, 9)])
    found = printed(tmp_path, capsys)
    assert found["trace"] == ""
    assert found["kernels"] == [["aten::mm", 1, 9.0]]


def test_no_trace_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(tmp_path, capsys) == {"gpu": False, "kernels": [], "steps": 0, "trace": ""}
