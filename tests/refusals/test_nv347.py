"""NV347, Ray's memory monitor: on a host with unified memory Ray would end the trials that it runs."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core.paths import Places
from nvllm.fleet import tasks
from nvllm.host import facts, survey
from nvllm.host.facts import EngineProblem
from nvllm.serve import hostclass
from support.host_samples import GPU
from support.task_samples import TASK


def test_a_trial_that_ray_would_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    monkeypatch.setenv("RAY_RAYLET_PID", "17")
    monkeypatch.delenv("RAY_memory_monitor_refresh_ms", raising=False)
    monkeypatch.setattr(facts, "nvidia_gpus", lambda _: ((GPU,), None))
    here = survey.host_facts(Places(tmp_path / "cache", tmp_path / "state"), EngineProblem("absent", "", ""))
    task = replace(TASK, host=hostclass.host_class(here))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(tasks.task_line(task))))
    assert main(["worker"]) == 0
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV347", "Ray on this host, whose memory is unified")
    assert refusal["expected"] == "RAY_memory_monitor_refresh_ms=0"
    assert refusal["cure"].startswith("ray stop && RAY_memory_monitor_refresh_ms=0 ray start --address=HEAD:6379")
