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


def test_a_model_at_a_path_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is its owner's: NVLLM_MODELS does not move it, and what changed in it is pinned and not brought back."""
    monkeypatch.setenv("NVLLM_MODELS", str(tmp_path))
    (tmp_path / "tiny").mkdir()
    spec = dataclasses.replace(SPEC, models={"tiny": DirectoryModel("directory", path="/srv/mine")})
    assert location.model_directory(spec, "tiny", sample_places(tmp_path)) == Path("/srv/mine")
    assert "/srv/mine" in location.model_cure(spec, "tiny")
    assert location.changed_cure(spec, "tiny") == "nvllm lock demo --model tiny"
    assert location.changed_cure(SPEC, "tiny") is None
    assert location.changed_cure(SPEC, "hub") is None


def test_several_directories_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("second/tiny", "third/tiny", "first"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv(
        "NVLLM_MODELS", ":".join(str(tmp_path / name) for name in ("absent", "first", "second", "third"))
    )
    assert location.model_directory(SPEC, "tiny", sample_places(tmp_path)) == tmp_path / "second/tiny"
