"""NV517, hardware fault. Memory with faults cannot be had: a program stands in that says what memtester says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvllm.cli.main import main
from support.gate_samples import BROKEN, put_memtester


def test_a_band_with_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{put_memtester(tmp_path / 'bin', *BROKEN, status=4).parent}:/usr/bin:/bin")
    assert main(["--json", "gate", "memory", "--bands", "1M"]) == 1
    document = json.loads(capsys.readouterr().out)
    (refusal,) = document["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV517", "memory gate: band 1M")
    assert refusal["found"].startswith("3 faults (Solid Bits at 0x0000000000abc008, ")
    assert refusal["cure"] == (
        "replace faulty memory, or stop what makes the host swap, and test it again: nvllm gate memory --bands 1M"
    )
    (record,) = document["result"]["gates"]
    assert (record["outcome"], record["bands"][0]["faults"]) == ("failed", 3)
    assert main(["gate", "memory", "--bands", "1M"]) == 1
    assert "1M  Checkerboard  0x0000000000abc008  0x5555555555555555 != 0x5555555555555554" in capsys.readouterr().out
