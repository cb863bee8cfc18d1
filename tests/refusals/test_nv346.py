"""NV346, cluster unreachable: no Ray cluster answers, or nothing proves who may use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nvllm.cli.main import main


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with Ray, whose user has no token yet."""
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "a home"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    (tmp_path / "lib/ray").mkdir(parents=True)
    (tmp_path / "lib/ray/__init__.py").touch()
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "lib")


def refusals(capsys: pytest.CaptureFixture[str], status: int = 1) -> list[dict[str, str]]:
    assert main(["fleet", "status", "--on", "ray://head", "--json"]) == status
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)["refusals"]
    return found


@pytest.mark.parametrize(("mode", "found"), [("", "no RAY_AUTH_MODE"), ("disabled", "disabled")])
def test_a_cluster_without_tokens(
    mode: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 32)
    (refusal,) = refusals(capsys)
    assert (refusal["code"], refusal["where"], refusal["found"]) == ("NV346", "ray://head", found)
    assert refusal["expected"] == "RAY_AUTH_MODE=token, here and on every machine"
    assert refusal["cure"] == "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/.ray/auth_token"


def test_a_user_without_a_token_is_told_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without one, Ray waits for half a minute and says that the connection timed out."""
    (refusal,) = refusals(capsys)
    assert (refusal["code"], refusal["found"]) == ("NV346", f"no file {tmp_path}/a home/.ray/auth_token")
    fetched = refusal["cure"].replace("scp head:.ray/auth_token", "touch")
    subprocess.run(["bash", "-c", fetched], check=True)
    assert (tmp_path / "a home/.ray/auth_token").is_file()


def test_all_that_a_host_lacks_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert [one["code"] for one in refusals(capsys, status=3)] == ["NV346", "NV346", "NV512"]
