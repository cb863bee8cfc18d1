"""NV501, no GPU: the profile needs a GPU, and the host shows none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import PLAN, put_program, refusals


def _refused(patience: float = 10) -> tuple[str, str, str, str]:
    facts = host.probe([], patience=patience)
    (found,) = (refusal for refusal in refusals(checks.Subject(PLAN, facts)) if refusal.code == "NV501")
    return found.where, found.expected, found.found, found.cure


def test_a_host_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing: an empty PATH takes nvidia-smi away from a machine that has one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    where, expected, found, cure = _refused()
    assert (where, expected, found) == ("nvidia-smi", "at least 1 NVIDIA GPU", "none")
    assert cure == "install the NVIDIA driver, or choose a profile without a GPU, such as those of cpu"


def test_a_driver_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake nvidia-smi that ends as the real one does when the kernel module is not loaded."""
    put_program(
        tmp_path / "bin", "nvidia-smi", 'echo "NVIDIA-SMI has failed because it could not communicate"', "exit 9"
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    _, _, found, cure = _refused()
    assert found == ("nvidia-smi ended with status 9 and said: NVIDIA-SMI has failed because it could not communicate")
    assert cure == "nvidia-smi"


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake nvidia-smi that hangs, as the real one does on a GPU that fell off the bus."""
    put_program(tmp_path / "bin", "nvidia-smi", "exec /bin/sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert _refused(patience=0.2)[2] == "nvidia-smi did not answer within 0.2 s"
