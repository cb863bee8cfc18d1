"""`nvllm.yaml`: read by its form, absent in older projects; what `nvllm init` writes of it is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.paths import Project, packaged
from nvllm.core.refusal import Refused
from nvllm.spec import projectfile
from nvllm.spec.projectfile import ProjectFile

GOOD = "schema: nvllm.project/1\n"


def test_an_older_project_has_none(tmp_path: Path) -> None:
    assert projectfile.of(Project(tmp_path)) == ProjectFile(projectfile.SCHEMA, None)


def test_what_init_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/mine.yaml").touch()
    (tmp_path / projectfile.NAME).write_bytes(projectfile.written("mine"))
    assert projectfile.of(Project(tmp_path)).default_image == "mine"


def test_the_default_of_the_project_that_nvllm_comes_with() -> None:
    project = packaged()
    assert projectfile.of(project).default_image == "cpu"
    assert (project.root / projectfile.NAME).read_bytes() == projectfile.written("cpu")


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("default-image: cpu\n", "NV112", "nvllm.yaml:1: .schema"),
        (f"{GOOD}default-image: gpu\n", "NV112", "nvllm.yaml:2: .default-image"),
        (f"{GOOD}default-image: [cpu]\n", "NV112", "nvllm.yaml:2: .default-image"),
        (f"{GOOD}image: cpu\n", "NV112", "nvllm.yaml:2: .image"),
        ("schema: nvllm.project/2\n", "NV112", "nvllm.yaml:1: .schema"),
        ("[]", "NV112", "nvllm.yaml:1: ."),
        ("", "NV112", "nvllm.yaml:1: ."),
        ("a: [", "NV103", "nvllm.yaml:1"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, code: str, where: str) -> None:
    with pytest.raises(Refused) as refused:
        projectfile.parse(text, ["cpu"])
    assert [(one.code, one.where) for one in refused.value.refusals] == [(code, where)]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / projectfile.NAME).mkdir()
    with pytest.raises(Refused) as refused:
        projectfile.of(Project(tmp_path))
    assert [one.code for one in refused.value.refusals] == ["NV109"]
    (tmp_path / projectfile.NAME).rmdir()
    (tmp_path / projectfile.NAME).write_bytes(b"\xff")
    with pytest.raises(Refused) as refused:
        projectfile.of(Project(tmp_path))
    assert [one.code for one in refused.value.refusals] == ["NV103"]
