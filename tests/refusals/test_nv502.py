"""NV502, wrong compute capability: the GPU is not one that the image has code for."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import PLAN, put_program, refusals


def test_each_gpu_without_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake nvidia-smi shows three GPUs, since no machine of ours has them."""
    put_program(
        tmp_path / "bin",
        "nvidia-smi",
        'echo "0, GPU-aa, NVIDIA GB10, 12.1, 580.95.05"',
        'echo "1, GPU-bb, NVIDIA A10G, 8.6, 580.95.05"',
        'echo "2, GPU-cc, NVIDIA H100, 9.0, 580.95.05"',
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = [
        refusal for refusal in refusals(checks.Subject(PLAN, host.probe([]))) if refusal.code in ("NV501", "NV502")
    ]
    assert [(refusal.code, refusal.where, refusal.found) for refusal in found] == [
        ("NV502", "GPU 1 (NVIDIA A10G, GPU-bb)", "8.6"),
        ("NV502", "GPU 2 (NVIDIA H100, GPU-cc)", "9.0"),
    ]
    assert {refusal.expected for refusal in found} == {"compute capability 12.0 or 12.1"}
    assert found[0].cure == "serve an image that has code for 8.6; images/sm120.yaml has none"
