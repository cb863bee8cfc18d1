"""NV109, unusable file: a FIFO, a device or gigabytes stand where a spec, a series, a patch or a lock should be."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli import frame
from nvllm.cli.main import main
from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from nvllm.gc.projects import Projects
from nvllm.lock import lockdoc
from nvllm.patches import seriesfile
from nvllm.spec import specfile
from support.plansamples import project, write_lock


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """End a test that blocks."""
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Stand in a project with the image `demo`, with a home of its own and no engine."""
    found = project(tmp_path)
    write_lock(found)
    monkeypatch.chdir(found.root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    return found


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(5 * 2**30)


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a character device": endless,
    "5368709120 bytes": sparse,
}


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Run ARGV with --json, which must end with one refusal NV109, and return it."""
    assert main([*argv, "--json"]) == 2
    (only,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (only["code"], only["title"]) == ("NV109", "unusable file")
    return dict(only)


@pytest.mark.parametrize("place", ["images/demo.yaml", "patches/v1/series.yaml", "manifests/demo.lock.json"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_command_reads_is_refused_by_its_kind(
    world: Project, capsys: pytest.CaptureFixture[str], place: str, kind: str
) -> None:
    spec = specfile.load(world.spec("demo"), "images/demo.yaml")
    path = place.replace("v1", spec.patches.series)
    (world.root / path).unlink()
    KINDS[kind](world.root / path)
    found = said(capsys, "explain", "demo", "demo")
    assert found["where"] == path
    assert found["found"].startswith(kind)


def test_a_patch_that_is_a_fifo(world: Project) -> None:
    series = next((world.root / "patches").iterdir())
    (patch, *_) = sorted(series.glob("*.patch"))
    patch.unlink()
    os.mkfifo(patch)
    with pytest.raises(Refused) as caught:
        seriesfile.load(series, f"patches/{series.name}")
    assert [(one.code, one.where) for one in caught.value.refusals] == [
        ("NV109", f"patches/{series.name}/{patch.name}")
    ]


def test_a_lock_that_is_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "demo.lock.json")
    with pytest.raises(Refused) as caught:
        lockdoc.read(tmp_path / "demo.lock.json", "manifests/demo.lock.json")
    assert [one.code for one in caught.value.refusals] == ["NV109"]


def test_a_file_in_the_place_of_a_link_of_the_state(world: Project) -> None:
    projects = Path(os.environ["NVLLM_HOME"], "state/projects")
    Projects(projects).remember(world)
    (projects / "notes").write_text("mine")
    with pytest.raises(Refused) as caught:
        Projects(projects).roots()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV109", f"{projects}/notes")
    command = refusal.cure.partition(";")[0]
    assert command == f"mv {projects}/notes {projects.parent}/notes.other"
    assert os.system(command) == 0
    assert [*Projects(projects).roots().values()] == [world.root]
    assert (projects.parent / "notes.other").read_text() == "mine"


def test_an_error_that_no_command_expects_is_about_a_file_too(
    world: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/somewhere")

    monkeypatch.setattr(frame, "find_project", closed)
    found = said(capsys, "patch", "list")
    assert (found["where"], found["found"]) == ("/somewhere", "Permission denied")


@pytest.mark.parametrize("kind", ["a FIFO", "a character device"])
def test_a_configuration_of_docker_that_would_block(
    world: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "docker").mkdir()
    KINDS[kind](tmp_path / "docker/config.json")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    found = said(capsys, "status")
    assert (found["where"], found["found"]) == (str(tmp_path / "docker/config.json"), kind)
