"""NV112, bad project file: `nvllm.yaml` has a field that it must not have, or names an image that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cli.main import main
from support import plansamples


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("schema: nvllm.project/1\ndefault-image: demos\n", "nvllm.yaml:2: .default-image"),
        ("schema: nvllm.project/1\nimage: demo\n", "nvllm.yaml:2: .image"),
    ],
)
def test_the_file_is_refused_where_it_would_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, where: str
) -> None:
    root = plansamples.project(tmp_path).root
    (root / "nvllm.yaml").write_text(text)
    monkeypatch.chdir(root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    assert main(["build", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("NV112 bad project file\n")
    assert f"  where     {where}\n" in said
    main(["build", "demo", "--dry-run"])  # a named image needs no default
    assert "NV112" not in capsys.readouterr().err
