"""`nvllm model` on a copy of the project, on a host without an engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core.lock import LockedModel
from nvllm.core.paths import Project
from nvllm.lock import lockdoc
from nvllm.models import modeltree

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for directory in ("images", "manifests", "patches"):
        shutil.copytree(ROOT / directory, tmp_path / directory)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    return Project(tmp_path)


def locked(project: Project, image: str) -> LockedModel:
    """What the lock of IMAGE says of the model."""
    path = project.lock(image)
    return lockdoc.read(path, project.show(path)).models["tiny-lfm2"]


@pytest.mark.parametrize("image", ["cpu", "sm120"])
def test_the_model_of_a_recipe_is_made_without_an_engine(
    project: Project, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "make", image, "tiny-lfm2", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["result"]
    pinned = locked(project, image)
    assert modeltree.tree_of(Path(made["directory"])) == (pinned.tree, pinned.files)
    assert made["tree"] == pinned.tree
    assert [path.name for path in Path(made["directory"]).parent.iterdir()] == ["tiny-lfm2"]
    assert main(["model", "check", image]) == 0


def test_a_damaged_model_is_made_again(project: Project) -> None:
    assert main(["model", "make", "cpu", "tiny-lfm2"]) == 0
    (config,) = (project.root / "home").rglob("tiny-lfm2/config.json")
    config.write_text("{}")
    (config.parent / "extra").touch()
    assert main(["model", "check", "cpu"]) == 3
    assert main(["model", "make", "cpu", "tiny-lfm2"]) == 0
    assert main(["model", "check", "cpu"]) == 0


def test_a_model_that_is_pinned_as_another_is_not_made(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    spec = project.spec("cpu")
    tree = locked(project, "cpu").tree
    other = "sha256:" + 64 * "0"
    spec.write_text(spec.read_text().replace(tree, other))
    assert main(["model", "make", "cpu", "tiny-lfm2", "--json"]) == 3
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV403", "images/cpu.yaml: .models.tiny-lfm2.tree")
    assert (refusal["expected"], refusal["found"]) == (other, tree)
    assert refusal["cure"] == "if that is the model you mean, write its tree there and lock again: nvllm lock cpu"
    assert not list((project.root / "home").rglob("tiny-lfm2"))


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_a_model_of_the_hub_that_the_lock_does_not_have_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The committed lock of sm120 was made with `--later`."""
    assert main(["model", command, "sm120", "qwen35-27b-nvfp4", "--json"]) == 3
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["where"]) == ("NV202", "manifests/sm120.lock.json")
    assert (refusal["found"], refusal["cure"]) == ("no such model in the lock", "nvllm lock sm120")
