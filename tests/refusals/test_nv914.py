"""NV914, project vanished: what a project needs that is not where it was, nobody knows, so nothing of it is removed.

The container engine is out of reach of unit tests; gc asks it for images and containers, and it has none.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.main import main
from nvllm.core.paths import Project
from nvllm.engine import engine
from nvllm.gc.projects import Projects
from nvllm.host.facts import ContainerFact, StoredImage
from nvllm.image import buildrecord, identity
from nvllm.image.buildrecord import Record
from nvllm.sources.store import Store
from support.plansamples import places, project


class NoImages:
    def stored(self) -> tuple[StoredImage, ...]:
        return ()

    def containers(self) -> tuple[ContainerFact, ...]:
        return ()


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Stand in one project; return another one that used the same home."""
    monkeypatch.setattr(engine, "require", NoImages)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project(tmp_path / "here").root)
    found = project(tmp_path / "there")
    Projects(places(tmp_path).projects).remember(found)
    return found


def locked_by_the_other_alone(other: Project, tmp_path: Path) -> Path:
    """Return a file of the store that only the lock of OTHER names."""
    made, _ = identity.load_build(other, "demo", None)
    sha256 = made.lock.vllm.source.sha256
    other.lock("demo").write_text(other.lock("demo").read_text().replace(sha256, "f" * 64))
    file = Store(places(tmp_path).store).path("f" * 64)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"wheel")
    os.utime(file, (1000, 1000))
    return file


def said(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> Any:
    assert main(["gc", *argv, "--json"]) == status
    printed = json.loads(capsys.readouterr().out)
    return printed["result"]["pieces"] if status == 0 else printed["refusals"]


def test_what_a_second_checkout_needs_stays(other: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = locked_by_the_other_alone(other, tmp_path)
    assert said(capsys) == []
    assert file.exists()


def test_one_that_vanished_is_named_and_nothing_goes_until_it_is_forgotten(
    other: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = locked_by_the_other_alone(other, tmp_path)
    shutil.move(other.root, tmp_path / "moved")
    ended = places(tmp_path).runs / "nvllm-demo-ended"
    ended.mkdir(parents=True)
    os.utime(ended, (1000, 1000))
    (one,) = said(capsys, "--dry-run", status=3)
    assert ended.exists()
    assert said(capsys, status=3) == [one]
    assert not ended.exists(), "no project can need it"
    assert (one["code"], one["where"], one["found"]) == ("NV914", str(other.root), "no images/ in it")
    assert one["cure"] == f"nvllm gc --forget {other.root}"
    assert file.exists()
    assert [piece["name"] for piece in said(capsys, "--forget", str(other.root))] == ["f" * 64]
    assert not file.exists()


def test_what_was_too_young_when_it_was_forgotten_goes_later(
    other: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, name = places(tmp_path), "b" * 64
    buildrecord.use(where, other, name)
    buildrecord.write(where.builds, Record("demo", name, f"sha256:{name}", ()))
    shutil.rmtree(other.root)
    assert said(capsys, "--forget", str(other.root)) == []
    os.utime(where.builds / f"{name}.json", (1000, 1000))
    assert [piece["name"] for piece in said(capsys)] == [f"{name}.json"]


def test_a_dry_run_forgets_nothing(other: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    locked_by_the_other_alone(other, tmp_path)
    shutil.rmtree(other.root)
    assert [piece["name"] for piece in said(capsys, "--dry-run", "--forget", str(other.root))] == ["f" * 64]
    assert [one["code"] for one in said(capsys, status=3)] == ["NV914"]


def test_one_that_was_never_known_cannot_be_forgotten(
    other: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [one["code"] for one in said(capsys, "--forget", str(tmp_path), status=2)] == ["NV107"]
