"""`nvllm kernels` where there is nothing to compile; what it makes is in tests/series/test_kernels.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.main import main

ROOT = Path(__file__).parents[3]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["--json", "kernels", *argv]) == 3
    printed = json.loads(capsys.readouterr().out)
    assert printed["command"] == f"kernels {argv[0]}"
    (found,) = printed["refusals"]
    return found


@pytest.mark.parametrize("command", ["build", "list", "check"])
def test_an_image_for_the_cpu_has_no_kernels(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path))
    found = refused(capsys, command, "cpu")
    assert (found["code"], found["where"], found["found"]) == ("NV315", "images/cpu.yaml", "none")
    assert not (tmp_path / "cache").exists()  # nothing was fetched for it
