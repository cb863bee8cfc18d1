"""NV512, tool missing: a program that nvllm needs on the host is not installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core import extras, proc
from nvllm.core.refusal import Refused


def test_a_program_that_is_not_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused) as caught:
        proc.require("mmdebstrap", "mmdebstrap")
    (found,) = caught.value.refusals
    assert (found.code, found.where) == ("NV512", "PATH")
    assert (found.expected, found.found) == ("the program mmdebstrap", "nothing of that name")
    assert found.cure == "apt-get install mmdebstrap"


def test_a_file_that_cannot_be_run_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused):
        proc.require("git", "git")
    (tmp_path / "git").chmod(0o755)
    assert proc.require("git", "git") == str(tmp_path / "git")


def test_the_package_of_an_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 32)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["fleet", "status", "--on", "ray://head", "--json"]) == 3
    (found,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (found["code"], found["expected"]) == ("NV512", "the Python package ray")
    assert found["cure"] == extras.installing("ray")
