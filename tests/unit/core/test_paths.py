"""Where things lie, by the environment and by the directory somebody stands in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvllm.core import paths
from nvllm.core.paths import Places, Project, ensure, find_project, packaged, places, relative_directories
from nvllm.core.refusal import Refused


def make_project(root: Path) -> Path:
    (root / "images").mkdir(parents=True)
    (root / "manifests").mkdir()
    return root


def test_one_variable_moves_everything(tmp_path: Path) -> None:
    found = places({"NVLLM_HOME": str(tmp_path), "HOME": "/home/somebody", "XDG_CACHE_HOME": "/elsewhere"})
    assert found == Places(tmp_path / "cache", tmp_path / "state")


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert places({"NVLLM_HOME": "here"}).cache == tmp_path / "here/cache"


def test_the_xdg_directories(tmp_path: Path) -> None:
    env = {"HOME": "/home/somebody", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"}
    assert places(env) == Places(Path("/c/nvllm"), Path("/s/nvllm"))
    assert places({"HOME": "/home/somebody"}) == Places(
        Path("/home/somebody/.cache/nvllm"), Path("/home/somebody/.local/state/nvllm")
    )


def test_nothing_in_the_cache_is_state() -> None:
    found = Places(Path("/cache"), Path("/state"))
    for directory in (found.store, found.layers, found.models):
        assert directory.is_relative_to("/cache")
    for directory in (found.locks, found.runs):
        assert directory.is_relative_to("/state")


def test_the_project_is_found_from_below(tmp_path: Path) -> None:
    root = make_project(tmp_path / "project")
    below = root / "patches/v1/deep"
    below.mkdir(parents=True)
    assert find_project(None, below) == Project(root)


def test_without_a_project_around_it_is_the_one_nvllm_came_with(tmp_path: Path) -> None:
    assert "cpu" in find_project(None, tmp_path).image_names()


def test_what_is_not_absolute_is_no_xdg_directory() -> None:
    env = {"HOME": "/home/somebody", "XDG_CACHE_HOME": "c", "XDG_STATE_HOME": "/s"}
    assert places(env) == Places(Path("/home/somebody/.cache/nvllm"), Path("/s/nvllm"))
    assert list(relative_directories(env)) == ["XDG_CACHE_HOME"]
    assert list(relative_directories({**env, "NVLLM_HOME": "here"})) == []


def test_the_project_that_nvllm_came_with_is_only_read(tmp_path: Path) -> None:
    found = find_project(None, tmp_path)
    with pytest.raises(Refused) as caught:
        found.writable(found.lock("cpu"))
    assert [one.code for one in caught.value.refusals] == ["NV110"]
    ours = Project(make_project(tmp_path))
    assert ours.writable(ours.lock("cpu")) == ours.lock("cpu")


def test_it_is_only_read_also_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = make_project(tmp_path / "site-packages/nvllm/project")
    monkeypatch.setattr(paths, "INSIDE", inside)
    for found in (packaged(), find_project(inside, tmp_path), find_project(None, inside / "images")):
        assert (found, found.own) == (Project(inside), False)


def test_specs_without_manifests_are_not_skipped(tmp_path: Path) -> None:
    root = make_project(tmp_path / "mine")
    (root / "manifests").rmdir()
    assert not find_project(None, root).own  # a directory that is called images by chance
    (root / "images/mine.yaml").write_text("schema: nvllm.image/1\n")
    (root / "patches").mkdir()
    with pytest.raises(Refused) as caught:
        find_project(None, root / "patches")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.cure) == ("NV107", str(root), f"mkdir {root}/manifests")
    assert "no manifests/" in refusal.found


def test_a_named_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_project(tmp_path / "project")
    monkeypatch.chdir(tmp_path)
    assert find_project(Path("project"), Path("/")) == Project(tmp_path / "project")


def test_a_named_directory_that_is_no_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        find_project(tmp_path, Path("/"))
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV107", str(tmp_path))


def test_files_of_a_project(tmp_path: Path) -> None:
    project = Project(make_project(tmp_path))
    (tmp_path / "images/b.yaml").touch()
    (tmp_path / "images/a.yaml").touch()
    (tmp_path / "images/notes.txt").touch()
    assert project.image_names() == ["a", "b"]
    assert project.show(project.spec("a")) == "images/a.yaml"
    assert project.show(project.lock("a")) == "manifests/a.lock.json"
    assert project.show(project.series("v1")) == "patches/v1"
    assert project.show(Path("/etc/passwd")) == "/etc/passwd"


def test_ensure_makes_directories_for_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        made = ensure(tmp_path / "state")
    finally:
        os.umask(old)
    assert made.stat().st_mode & 0o777 == 0o700
    assert ensure(made) == made
