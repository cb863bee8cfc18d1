"""NV503, driver too old: the NVIDIA driver is older than the image's CUDA needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import PLAN, put_program, refusals


def test_an_old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake nvidia-smi: drivers cannot be changed on demand."""
    put_program(tmp_path / "bin", "nvidia-smi", 'echo "0, GPU-aa, NVIDIA GB10, 12.1, 575.6.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (found,) = (r for r in refusals(checks.Subject(PLAN, host.probe([]))) if r.code == "NV503")
    assert found.where == "GPU 0 (NVIDIA GB10, GPU-aa)"
    assert (found.expected, found.found) == ("NVIDIA driver 575.51.03 or newer", "575.6.1")
    assert found.cure == "install NVIDIA driver 575.51.03 or newer, and reboot"
