"""NV346, cluster unreachable: no Ray cluster answers, or nothing proves who may use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvllm.cli.main import main


@pytest.mark.parametrize(("mode", "found"), [("", "no RAY_AUTH_MODE"), ("disabled", "disabled")])
def test_a_cluster_without_tokens(
    mode: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert main(["fleet", "status", "--on", "ray://head", "--json"]) == 1
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"], refusal["found"]) == ("NV346", "ray://head", found)
    assert refusal["expected"] == "RAY_AUTH_MODE=token, here and on every machine"
    assert refusal["cure"] == "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/.ray/auth_token"
