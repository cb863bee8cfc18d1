"""Two clones that serve the same profile: who has the plain name, and when it is free again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nvllm.core.paths import Places, Project, packaged
from nvllm.core.refusal import Refused
from nvllm.serve import owners
from support.plansamples import places, project

PLAIN = "nvllm-demo-eager"


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return places(tmp_path)


@pytest.fixture
def clones(tmp_path: Path) -> tuple[Project, Project]:
    return project(tmp_path / "one"), project(tmp_path / "other")


def name(of: Project, where: Places) -> str:
    return owners.instance_name(of, where, "demo", "eager")


def test_the_first_has_the_plain_name_and_the_other_one_of_its_own(
    clones: tuple[Project, Project], where: Places
) -> None:
    one, other = clones
    assert [name(each, where) for each in clones] == [PLAIN, PLAIN]
    for _ in range(2):
        owners.claim(one, where, PLAIN)
    own = f"{PLAIN}-{other.id[:7]}"
    assert [name(each, where) for each in clones] == [PLAIN, own]
    owners.claim(other, where, own)
    assert [owners.owner(where, each) for each in (PLAIN, own)] == [str(one.root), str(other.root)]


def test_who_comes_second_at_the_same_time_is_refused(clones: tuple[Project, Project], where: Places) -> None:
    one, other = clones
    assert name(other, where) == PLAIN
    owners.claim(one, where, PLAIN)
    with pytest.raises(Refused) as caught:
        owners.claim(other, where, PLAIN)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV921", PLAIN, f"one of {one.root}")


def test_the_name_is_free_when_its_project_is_gone(clones: tuple[Project, Project], where: Places) -> None:
    one, other = clones
    owners.claim(one, where, PLAIN)
    shutil.rmtree(one.root)
    owners.check(other, where, PLAIN)
    assert name(other, where) == PLAIN
    owners.claim(other, where, PLAIN)
    assert owners.owner(where, PLAIN) == str(other.root)


def test_the_project_that_nvllm_came_with_owns_too(
    clones: tuple[Project, Project], where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is the same one after an upgrade into another directory."""
    for version in ("old", "new"):
        inside = tmp_path / version / "nvllm/project"
        (inside / "images").mkdir(parents=True)
        monkeypatch.setattr("nvllm.core.paths.INSIDE", inside)
        owners.claim(packaged(), where, PLAIN)
        assert owners.owner(where, PLAIN) == "packaged"
        with pytest.raises(Refused) as caught:
            owners.check(clones[0], where, PLAIN)
        assert caught.value.refusals[0].cure == f"nvllm --project {inside} status"


@pytest.mark.parametrize("instance", ["../x", "", "a/b"])
def test_what_is_no_name_has_no_owner(where: Places, instance: str) -> None:
    with pytest.raises(Refused) as caught:
        owners.owner(where, instance)
    assert caught.value.refusals[0].code == "NV108"
