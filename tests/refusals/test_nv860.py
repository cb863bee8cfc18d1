"""NV860: compiles are to be compared, and the profile keeps nothing that it compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.campaign_world import campaign
from support.plansamples import FrontEnd


def test_an_eager_profile_has_no_artifacts(
    tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = campaign(tmp_path, front, monkeypatch, capsys)
    asked = ["--probe", "gsm8k", "--data", str(made.questions), "--output", str(made.output)]
    status, document = made.nvllm(["ablate", "demo", "--profile", "eager", "--artifacts", "3", *asked])
    (refusal,) = document["refusals"]
    assert (status, refusal["code"], refusal["found"]) == (2, "NV860", "it compiles nothing")
    assert refusal["cure"] == "name a profile that compiles, and keeps what it compiles: --profile P"
    assert (made.engine.plans, made.output.exists()) == ([], False)
