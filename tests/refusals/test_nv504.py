"""NV504, container toolkit too old: the NVIDIA container toolkit has a known escape, or is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal
from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import PLAN, put_program, refusals


def _refused() -> Refusal:
    (found,) = (r for r in refusals(checks.Subject(PLAN, host.probe([]))) if r.code == "NV504")
    assert found.where == "nvidia-ctk"
    assert found.expected == "NVIDIA container toolkit 1.17.8 or newer"
    return found


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("1.17.7", "1.17.7, which has CVE-2025-23266"),
        ("1.16.2", "1.16.2, which has CVE-2025-23266"),
        ("1.16.1", "1.16.1, which has CVE-2024-0132 and CVE-2025-23266"),
    ],
)
def test_a_toolkit_with_known_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, found: str
) -> None:
    """A fake nvidia-ctk that says its version as the real one does."""
    put_program(tmp_path / "bin", "nvidia-ctk", f'echo "NVIDIA Container Toolkit CLI version {version}"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    refusal = _refused()
    assert refusal.found == found
    assert refusal.cure == "apt-get install --only-upgrade nvidia-container-toolkit"


def test_no_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing: an empty PATH takes nvidia-ctk away from a machine that has one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    refusal = _refused()
    assert refusal.found == "no nvidia-ctk on PATH"
    assert refusal.cure == "apt-get install nvidia-container-toolkit"
