"""NV404, not an adapter: a profile names a model as a LoRA adapter that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import own_files


def test_a_directory_without_the_file_of_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_files.make(tmp_path, monkeypatch)
    (own.adapter / "adapter_config.json").rename(own.adapter / "config.json")
    own.lock()
    (refusal,) = [one for one in own.tried().refusals if one.code == "NV404"]
    assert refusal.where == "manifests/demo.lock.json: .models.pirate"
    assert refusal.expected == "a LoRA adapter, with adapter_config.json"
    assert refusal.cure == "nvllm lock demo --model pirate"
