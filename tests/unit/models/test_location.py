"""Where models lie, and which command brings one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from nvllm.core.spec import DirectoryModel
from nvllm.models import location
from support.plansamples import MODEL, SPEC
from support.plansamples import places as sample_places


def test_where_a_model_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = sample_places(tmp_path)
    monkeypatch.delenv("NVLLM_MODELS", raising=False)
    assert location.model_directory(SPEC, "tiny", places) == places.models / "tiny"
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert location.model_directory(SPEC, "hub", places) == Path("/h/.cache/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/hf")
    assert location.model_directory(SPEC, "hub", places) == Path("/hf/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/hub")
    assert location.model_directory(SPEC, "hub", places) == Path("/hub")


def test_what_brings_a_model() -> None:
    assert location.model_cure(SPEC, "tiny") == "nvllm model make demo tiny"
    assert location.model_cure(SPEC, "hub") == "nvllm model fetch demo hub"
    bare = DirectoryModel("directory", MODEL.tree)
    plain = dataclasses.replace(SPEC, models={"tiny": bare})
    assert "nvllm" not in location.model_cure(plain, "tiny")
