"""NV107, unknown name: the image spec that is asked for is not there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core.paths import packaged
from nvllm.core.refusal import Refusal, Refused
from nvllm.spec import specfile
from support import plansamples


def refusal_of(path: Path) -> Refusal:
    with pytest.raises(Refused) as caught:
        specfile.load(path, f"images/{path.name}")
    (refusal,) = caught.value.refusals
    return refusal


def test_missing_spec_lists_the_images(tmp_path: Path) -> None:
    (tmp_path / "cpu.yaml").touch()
    (tmp_path / "gb10.yaml").touch()
    refusal = refusal_of(tmp_path / "gb11.yaml")
    assert (refusal.code, refusal.where) == ("NV107", "images/gb11.yaml")
    assert refusal.expected == "one of the images cpu, gb10"
    assert refusal.found == "no such file"
    assert refusal.cure == "name another image, such as gb10"


def test_missing_spec_where_there_is_none(tmp_path: Path) -> None:
    refusal = refusal_of(tmp_path / "cpu.yaml")
    assert (refusal.expected, refusal.cure) == ("an image spec", "write images/cpu.yaml")


def test_a_project_without_a_dockerfile_is_told_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = plansamples.project(tmp_path)
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    (project.root / "images/native-build-requirements.txt").write_text("")
    assert main(["dockerfile", "demo", "--patches", "none", "--context", "../context"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("NV107 unknown name\n  where     Dockerfile\n")
    cure = shlex.join(["cp", f"{packaged().root}/Dockerfile", f"{project.root}/Dockerfile"])
    assert f"  cure      {cure}\n" in said
    assert (packaged().root / "Dockerfile").is_file()
