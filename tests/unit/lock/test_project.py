"""An image of the project is locked without the command line, as a program would do it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import nvllm.lock
from nvllm.core.lock import Lock, LockedModel
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.core.spec import HubModel
from nvllm.lock import compare, lock_image, read_inputs, read_lock, usable_lock
from nvllm.models import tree_hash

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


def test_a_model_of_the_hub_is_locked_later(tmp_path: Path) -> None:
    project, places = Project(ROOT), Places(tmp_path / "cache", tmp_path / "state")
    inputs, model = read_inputs(project, "sm120"), "qwen35-27b-nvfp4"
    locked = read_lock(project, "sm120")
    without = replace(locked, models={name: one for name, one in locked.models.items() if name != model})

    def lock(previous: Lock, *later: str) -> Lock:
        return lock_image(inputs, previous, places, later=later, offline=True, progress=Silent())

    assert lock(without, model) == without
    with pytest.raises(Refused) as caught:
        lock(without)
    assert [one.where for one in caught.value.refusals] == ["nvllm lock, the model ig1/Qwen3.5-27B-NVFP4"]
    pinned = LockedModel("huggingface", tree_hash(()), (), "ig1/Qwen3.5-27B-NVFP4", None, None)
    spec_model = inputs.spec.models[model]
    assert isinstance(spec_model, HubModel)
    known = replace(without, models={**without.models, model: replace(pinned, revision=spec_model.revision)})
    assert lock(known, model) == known  # what is locked is not left out


@pytest.mark.parametrize("name", ["tiny-lfm2", "no-such"])
def test_only_a_model_of_the_hub_can_wait(tmp_path: Path, name: str) -> None:
    project, places = Project(ROOT), Places(tmp_path / "cache", tmp_path / "state")
    with pytest.raises(Refused) as caught:
        lock_image(read_inputs(project, "sm120"), None, places, later=[name], offline=True, progress=Silent())
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV107", name)]


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
