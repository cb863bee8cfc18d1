"""NV342, another class: a machine is of another class than the task that it was sent names."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.fleet import tasks
from support.task_samples import HOST, TASK


def test_a_task_for_another_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(tasks.task_line(TASK))))
    assert main(["worker"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (refusal,) = answer["refusals"]
    assert (answer["task"], refusal["code"], refusal["where"]) == (TASK.task, "NV342", "this host")
    assert (refusal["expected"], refusal["found"]) == (f"class {HOST}", f"class {answer['host']}")
    assert refusal["cure"].endswith(f"ray start --labels nvllm-class={answer['host']}")
