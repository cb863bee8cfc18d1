"""The projects that a state directory remembers, on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from nvllm.gc.projects import Projects
from support.plansamples import places, project


@pytest.fixture
def known(tmp_path: Path) -> Projects:
    return Projects(tmp_path / "state/projects")


def checkout(tmp_path: Path, name: str) -> Project:
    (tmp_path / name / "images").mkdir(parents=True)
    return Project(tmp_path / name)


def test_nothing_is_known_at_first(known: Projects) -> None:
    assert known.roots() == {}
    assert known.present() == []
    assert not known.directory.exists()


def test_what_is_remembered_once_and_again(known: Projects, tmp_path: Path) -> None:
    one, other = checkout(tmp_path, "one"), checkout(tmp_path, "an\nother \udcff")
    for each in (one, other, one):
        known.remember(each)
    assert known.present() == sorted([one, other], key=lambda found: found.root)
    assert len(list(known.directory.iterdir())) == 2
    assert known.directory.stat().st_mode & 0o777 == 0o700


def test_what_is_forgotten(known: Projects, tmp_path: Path) -> None:
    one, other = checkout(tmp_path, "one"), checkout(tmp_path, "other")
    known.remember(one)
    known.remember(other)
    for _ in range(2):
        known.forget(one.root)
    assert known.present() == [other]


@pytest.mark.parametrize("some", [True, False])
def test_what_was_never_known_is_not_forgotten(known: Projects, tmp_path: Path, some: bool) -> None:
    if some:
        known.remember(checkout(tmp_path, "one"))
    with pytest.raises(Refused) as caught:
        known.present([tmp_path / "another"])
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.found) == ("NV107", "--forget", str(tmp_path / "another"))


def test_what_is_to_be_forgotten_need_not_be_there(known: Projects, tmp_path: Path) -> None:
    one, other = checkout(tmp_path, "one"), checkout(tmp_path, "other")
    known.remember(one)
    known.remember(other)
    (one.root / "images").rmdir()
    assert known.present([one.root]) == [other]
    assert sorted(known.roots().values()) == [one.root, other.root], "only `forget` forgets"


def test_a_state_that_takes_nothing_is_said(known: Projects, tmp_path: Path) -> None:
    known.directory.parent.mkdir()
    known.directory.write_bytes(b"no directory")
    with pytest.raises(Refused) as caught:
        known.remember(checkout(tmp_path, "one"))
    assert [one.code for one in caught.value.refusals] == ["NV911"]


def test_a_link_to_a_project_is_the_same_project(known: Projects, tmp_path: Path) -> None:
    one = checkout(tmp_path, "one")
    os.symlink(one.root, tmp_path / "link")
    known.remember(one)
    known.remember(Project(tmp_path / "link"))
    assert [*known.roots().values()] == [one.root]


# Who is remembered

BRINGS: dict[str, list[str]] = {
    "build": ["build", "demo"],
    "lock": ["lock", "demo"],
    "serve": ["serve", "demo", "--profile", "eager"],
    "bisect": ["bisect", "start", "demo", "--profile", "eager", "--test-builtin", "boots"],
    "dockerfile": ["dockerfile", "demo", "--base-image", "demo-base"],
    "patch": ["patch", "check", "demo", "--against", "0.28.0"],
}
LOOKS: dict[str, list[str]] = {
    "build": ["build", "demo", "--dry-run"],
    "serve": ["serve", "demo", "--profile", "eager", "--dry-run"],
    "doctor": ["doctor", "demo", "--profile", "eager"],
    "gc": ["gc", "--dry-run"],
    "list": ["manifest", "list"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Stand in a project, with no engine and no network."""
    found = project(tmp_path)
    monkeypatch.chdir(found.root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    return found


@pytest.mark.parametrize("name", BRINGS)
def test_whoever_brings_something_here_is_remembered(name: str, here: Project, tmp_path: Path) -> None:
    """Also if it is refused in the end: what it brought until then is there."""
    main(["--offline", *BRINGS[name]])
    assert [*Projects(places(tmp_path).projects).roots().values()] == [here.root]


@pytest.mark.parametrize("name", LOOKS)
def test_whoever_only_looks_leaves_nothing(name: str, here: Project, tmp_path: Path) -> None:
    main(["--offline", *LOOKS[name]])
    assert Projects(places(tmp_path).projects).roots() == {}
