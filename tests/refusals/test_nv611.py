"""NV611, not over an image: a work tree changes what no layer over the image can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.buildable import IMAGE, Buildable
from support.specs import GOOD


def test_a_native_file_is_refused_before_an_engine_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, tree = Buildable(tmp_path), tmp_path / "tree"
    assert made.nvllm(capsys, "dev", "start", IMAGE, str(tree))[0] == 0
    (tree / "csrc").mkdir()
    (tree / "csrc/new.cu").write_text("int x;\n")
    profile = GOOD.partition("profiles:\n")[2].split(":")[0].strip()
    status, document = made.nvllm(capsys, "dev", "serve", str(tree), "--profile", profile)
    assert status == 3
    (refusal,) = document["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV611", f"{tree}/csrc/new.cu")
    assert refusal["found"] == "a file that is compiled into the wheel"
