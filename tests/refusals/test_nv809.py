"""NV809: a bisect is here that no present project has started: of an older nvllm, or of a project that was moved."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.bisect import journal
from nvllm.cli.main import main
from nvllm.gc.projects import Projects
from support.bisect_world import free, start
from support.plansamples import places, project, write_lock


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    capsys.readouterr()
    main([*argv, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("moved", "forgotten"), [(False, False), (True, False), (True, True)])
def test_a_bisect_that_is_nobodys_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moved: bool, forgotten: bool
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    here, where = project(tmp_path), places(tmp_path)
    write_lock(here)
    monkeypatch.chdir(here.root)
    (probe := tmp_path / "probe.sh").write_text("#!/bin/sh\n")
    probe.chmod(0o755)
    old = where.state / "bisect/demo/journal.jsonl"
    if moved:
        other = project(tmp_path / "other")
        old = where.work(other) / "bisect/demo/journal.jsonl"
        Projects(where.projects).remember(other)
    journal.create(old, replace(start(free(2)), image="demo"))
    if moved:
        assert document(capsys, "bisect", "status")["refusals"][0]["code"] == "NV107"
        shutil.rmtree(other.root)
    if forgotten:
        Projects(where.projects).forget(other.root)
    for command in (["status"], ["run"], ["status", "--image", "demo"], ["start", "demo", "--test", str(probe)]):
        (refusal,) = document(capsys, "bisect", *command)["refusals"]
        assert (refusal["code"], refusal["where"]) == ("NV809", str(old)), command
    assert main(["bisect", "list"]) == 0
    assert str(old) in capsys.readouterr().err
    subprocess.run(["sh", "-c", refusal["cure"]], check=True)
    assert document(capsys, "bisect", "status")["result"]["image"] == "demo"
    assert not old.exists()
