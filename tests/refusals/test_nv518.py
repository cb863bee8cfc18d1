"""NV518, not measured: a gate that cannot measure here what it is for. It is no pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvllm.cli.main import main
from support.gate_samples import OK, put_memtester


def test_a_band_that_could_not_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{put_memtester(tmp_path / 'bin', OK).parent}:/usr/bin:/bin")
    program = tmp_path / "bin/memtester"
    program.write_text(program.read_text().replace("${LOCKED:-$bytes}", "4096"))
    assert main(["--json", "gate", "memory", "--bands", "1M"]) == 3
    document = json.loads(capsys.readouterr().out)
    (refusal,) = document["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV518", "memory gate: band 1M")
    assert refusal["found"].startswith("4096 bytes of 1048576 could be locked in memory")
    assert document["result"]["gates"][0]["outcome"] == "not measured"
