"""An image of the project is locked without the command line, as a program would do it."""

from __future__ import annotations

from pathlib import Path

import pytest

import nvllm.lock
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.lock import compare, lock_image, read_inputs, read_lock, usable_lock

ROOT = Path(__file__).parents[3]


def test_a_lock_that_fits_its_spec_is_resolved_to_itself(tmp_path: Path) -> None:
    project, places = Project(ROOT), Places(tmp_path / "cache", tmp_path / "state")
    previous = read_lock(project, "cpu")
    new = lock_image(read_inputs(project, "cpu"), previous, places, offline=True, progress=Silent())
    assert compare(previous, new) == ()
    assert not tmp_path.joinpath("state").exists()


def test_what_must_be_resolved_again_is_refused_offline(tmp_path: Path) -> None:
    project, places = Project(ROOT), Places(tmp_path / "cache", tmp_path / "state")
    with pytest.raises(Refused) as caught:
        lock_image(
            read_inputs(project, "cpu"),
            usable_lock(project, "cpu", Silent()),
            places,
            ["wheels"],
            offline=True,
            progress=Silent(),
        )
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV209", "nvllm lock, wheels")]


def test_a_missing_lock_is_none_or_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert usable_lock(project, "cpu", Silent()) is None
    with pytest.raises(Refused) as caught:
        read_lock(project, "cpu")
    assert [one.code for one in caught.value.refusals] == ["NV201"]


def test_the_room_exports_only_names_that_exist() -> None:
    assert all(vars(nvllm.lock).get(name) or getattr(nvllm.lock, name) for name in nvllm.lock.__all__)
    with pytest.raises(AttributeError):
        vars(nvllm.lock)["__getattr__"]("nothing")
