"""A build is read from a project on disk: spec, lock and patch set, and why they do not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from nvllm.image.identity import load_build
from support.plansamples import edit, project, shorten_series


@pytest.fixture
def demo(tmp_path: Path) -> Project:
    return project(tmp_path)


def test_a_project_that_fits_together_has_nothing_stale(demo: Project) -> None:
    made, stale = load_build(demo, "demo", None)
    assert stale == []
    assert [patch.id for patch in made.patches] == ["first"]
    assert made.spec.name == made.lock.image == "demo"


def test_another_patch_set_is_another_build(demo: Project) -> None:
    one, _ = load_build(demo, "demo", None)
    other, stale = load_build(demo, "demo", ["first", "second"])
    none, _ = load_build(demo, "demo", [])
    assert stale == []
    assert [patch.id for patch in other.patches] == ["first", "second"]
    assert len({one.build_hash, other.build_hash, none.build_hash}) == 3


def test_a_spec_and_a_series_that_moved_are_both_said(demo: Project) -> None:
    edit(demo.spec("demo"), "torch==2.13.0+cpu", "torch==2.13.1+cpu")
    shorten_series(demo)
    _, stale = load_build(demo, "demo", None)
    assert [refusal.code for refusal in stale] == ["NV202", "NV203"]
    assert {refusal.cure for refusal in stale} == {"nvllm lock demo"}
    assert stale[1].where == "manifests/demo.lock.json: patch second"


def test_a_patch_of_the_set_that_touches_what_the_wheel_differs_in(demo: Project) -> None:
    edit(demo.spec("demo"), "differs: [vllm/_version.py]", "differs: [vllm/one.py]")
    _, stale = load_build(demo, "demo", None)
    assert ("NV104", "vllm/one.py") in [(refusal.code, refusal.found) for refusal in stale]


def test_a_patch_set_that_is_not_closed_names_where_it_was_asked_for(demo: Project) -> None:
    for enable, where in [(["second"], "--patches"), (None, "images/demo.yaml: .patches.enable")]:
        if enable is None:
            edit(demo.spec("demo"), "enable: [first]", "enable: [second]")
        with pytest.raises(Refused) as caught:
            load_build(demo, "demo", enable)
        assert [refusal.code for refusal in caught.value.refusals] == ["NV106"]
        assert caught.value.refusals[0].where.startswith(where)


def test_an_image_without_a_lock(demo: Project) -> None:
    demo.lock("demo").unlink()
    with pytest.raises(Refused) as caught:
        load_build(demo, "demo", None)
    assert [(one.code, one.cure) for one in caught.value.refusals] == [("NV201", "nvllm lock demo")]
