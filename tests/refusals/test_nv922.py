"""NV922, projects unknown: without the list of projects, what the others need would look like garbage.

The container engine is out of reach of unit tests; gc asks it for images and containers.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.engine import engine
from nvllm.gc.projects import Projects
from nvllm.host.facts import ContainerFact, ImageFacts, StoredImage
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record
from support.plansamples import places, project

OTHERS = "b" * 64


class OneImage:
    """It has the image that another project has built."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def stored(self) -> tuple[StoredImage, ...]:
        return (StoredImage(ImageFacts(f"sha256:{OTHERS}", (), ("nvllm:demo-b",), 7), (("sha256:base", 7),)),)

    def containers(self) -> tuple[ContainerFact, ...]:
        return ()

    def remove_image(self, reference: str) -> bool:
        self.removed.append(reference)
        return True


@pytest.mark.parametrize("rot", ["gone", "a dangling link", "a link to an empty directory", "a file", "an entry"])
def test_a_rotten_list_offers_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rot: str
) -> None:
    held, where = OneImage(), places(tmp_path)
    monkeypatch.setattr(engine, "require", lambda: held)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project(tmp_path / "here").root)
    Projects(where.projects).remember(project(tmp_path / "there"))
    buildrecord.write(where.builds, Record("demo", OTHERS, f"sha256:{OTHERS}", ()))
    os.utime(where.builds / f"{OTHERS}.json", (1000, 1000))
    if rot != "an entry":
        shutil.rmtree(where.projects)
    if rot == "a dangling link":
        where.projects.symlink_to(tmp_path / "nowhere")
    elif rot == "a link to an empty directory":
        (tmp_path / "empty").mkdir()
        where.projects.symlink_to(tmp_path / "empty")
    elif rot == "a file":
        where.projects.write_text("")
    elif rot == "an entry":
        (where.projects / ("0" * 16)).write_text("")
    for options in ([], ["--dry-run"]):
        capsys.readouterr()
        assert main(["gc", "--json", *options]) == (2 if rot == "an entry" else 3)
        (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
        assert refusal["code"] == ("NV109" if rot == "an entry" else "NV922")
    assert held.removed == []


def test_a_state_that_never_had_a_build_needs_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "require", OneImage)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project(tmp_path / "here").root)
    assert main(["gc", "--dry-run"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
