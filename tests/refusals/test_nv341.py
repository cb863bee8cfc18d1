"""NV341, no task: what a worker was sent is no task."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from nvllm.cli.main import main


def test_a_line_that_is_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker goes on: the next line gets its answer too."""
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'try this\n{"schema": "nvllm.task/1"}\n')))
    assert main(["worker"]) == 0
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (refusal,) = first["refusals"]
    assert (first["answer"], refusal["code"], refusal["where"]) == ("refused", "NV341", "stdin")
    assert refusal["expected"] == "a JSON document"
    assert refusal["cure"]
    assert {one["where"] for one in second["refusals"]} == {"stdin: .ask"}
