"""NV111, which image: two images have the profile, or no default decides; the refusal has a line for each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nvllm.cli.main import main
from support import plansamples


@pytest.fixture(autouse=True)
def two_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a project with the images demo and other, which have the same profile; without a default."""
    root = plansamples.project(tmp_path).root
    shutil.copy(root / "images/demo.yaml", root / "images/other.yaml")
    other = root / "images/other.yaml"
    other.write_text(other.read_text().replace("name: demo", "name: other", 1))
    monkeypatch.chdir(root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    return root


def test_a_profile_that_two_images_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--profile", "eager"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("NV111 which image\n")
    cure = said.partition("  cure      ")[2].splitlines()
    lines = [line.strip() for line in cure]
    assert lines == ["one of these lines:", "nvllm serve demo --profile eager", "nvllm serve other --profile eager"]


def test_no_default(two_images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--dry-run"]) == 2
    assert "NV111" in capsys.readouterr().err
    (two_images / "nvllm.yaml").write_text("schema: nvllm.project/1\ndefault-image: other\n")
    main(["build", "--dry-run"])
    assert capsys.readouterr().err.startswith("image other: the default in nvllm.yaml\n")
