"""What can be said of a profile before there is a lock, and that it is what `examine` says where there is one.

No engine is asked but where a test puts a fake in its place, which answers as the real one does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.serve import examination
from nvllm.serve.examination import Depth, Examination, examine
from support.plansamples import edit, put_model

HOST = {"NV505", "NV506", "NV507"}
"""What this host may lack."""


pytestmark = pytest.mark.usefixtures("no_engine")


def seen(demo: Project, places: Places, profile: str = "eager") -> Examination:
    return examine(demo, places, "demo", profile, Depth.SHOW, paranoid=False, progress=Silent())


def said(found: Examination) -> dict[str, str]:
    return {one.code: one.found for one in found.refusals if one.code not in HOST}


def test_with_a_lock_it_is_what_examine_finds(demo: Project, places: Places) -> None:
    put_model(places)
    found = examine(demo, places, "demo", "eager", Depth.WHOLE, paranoid=False, progress=Silent())
    assert seen(demo, places).plan == found.plan
    assert {one.code for one in seen(demo, places).refusals} == {one.code for one in found.refusals}


def test_without_a_lock_the_plan_says_what_the_spec_decides(demo: Project, places: Places) -> None:
    put_model(places)
    locked = seen(demo, places).plan
    demo.lock("demo").unlink()
    found = seen(demo, places)
    assert (found.plan.build_hash, found.plan.serve_hash, found.plan.image_id) == ("", "", "")
    same = ("command", "environment", "scratch", "user", "port", "limits", "host", "sentinels", "waivers", "probe")
    for name in same:
        assert dataclasses.asdict(found.plan)[name] == dataclasses.asdict(locked)[name], name
    assert found.plan.model == dataclasses.replace(locked.model, tree=f"sha256:{64 * 'a'}")  # what the spec pins
    assert [one.target for one in found.plan.mounts] == ["/run/nvllm"]


def test_a_patch_that_the_profile_requires_is_looked_for_with_a_lock_and_without(demo: Project, places: Places) -> None:
    edit(demo.spec("demo"), "    model: tiny\n", "    model: tiny\n    requires: [aot-load-guard, none-such]\n")
    with_lock = [one for one in seen(demo, places).refusals if one.code == "NV613"]
    demo.lock("demo").unlink()
    without = [one for one in seen(demo, places).refusals if one.code == "NV613"]
    assert with_lock == without
    assert [one.expected for one in without] == [
        f"a patch set that has {name}" for name in ("aot-load-guard", "none-such")
    ]


def test_without_a_lock_the_draft_model_is_looked_for_as_well(demo: Project, places: Places) -> None:
    demo.lock("demo").unlink()
    edit(demo.spec("demo"), "    model: tiny\n", "    model: tiny\n    draft: hub\n")
    edit(demo.spec("demo"), "    follow: main\n", f"    revision: {'b' * 40}\n")
    found = seen(demo, places)
    assert found.plan.draft is not None
    assert (found.plan.draft.path, found.plan.draft.revision) == ("/drafts/hub", "b" * 40)
    assert sum(one.code == "NV401" for one in found.refusals) == 2


def test_without_anything_everything_is_said_at_once(demo: Project, places: Places) -> None:
    demo.lock("demo").unlink()
    spec = demo.spec("demo")
    edit(spec, "    port: 8000\n", '    port: 8000\n    gpu: {capabilities: ["12.1"], driver: "590.48.01"}\n')
    edit(spec, "    description: the smallest\n", "    description: the smallest\n    blessed: true\n")
    edit(spec, "enforce-eager: true", "kv-cache-memory-bytes: 67108864")
    codes = set(said(seen(demo, places)))
    assert {"NV201", "NV401", "NV501", "NV504", "NV510", "NV901"} <= codes
    assert "NV302" not in codes  # without lock and engine nobody can say which image there must be


def test_a_damaged_lock_is_a_refusal_and_not_the_end(demo: Project, places: Places) -> None:
    demo.lock("demo").write_text("{}")
    found = seen(demo, places)
    assert "NV210" in said(found)
    assert found.plan.build_hash == ""


def test_a_host_of_another_platform_sees_the_plan_and_is_told(demo: Project, places: Places) -> None:
    arm = dataclasses.replace(demo, platform="linux/arm64")
    found = seen(arm, places)
    assert said(found)["NV108"] == "linux/arm64"
    assert found.plan == seen(demo, places).plan  # it has a lock for the platform that it is made for


def test_an_image_without_a_lock_is_not_taken_for_the_one(
    demo: Project, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is a fake that holds an image of any name: what matters is only what is concluded."""

    class Holding:
        def image(self, _: str) -> object:
            return object()

        def facts(self) -> None:
            return None

        def containers(self) -> tuple[()]:
            return ()

    demo.lock("demo").unlink()
    monkeypatch.setattr(examination, "connect", Holding)
    assert "NV302" not in said(seen(demo, places))  # NV201 says it: only the lock names the image
    monkeypatch.setattr(Holding, "image", lambda *_: None)
    assert said(seen(demo, places))["NV302"] == "no such image"


@pytest.mark.parametrize(("revision", "code"), [(f"revision: {'b' * 40}", "NV401"), ("follow: main", None)])
def test_a_model_of_the_hub_is_looked_for_where_its_revision_is_known(
    demo: Project, places: Places, tmp_path: Path, revision: str, code: str | None
) -> None:
    demo.lock("demo").unlink()
    edit(demo.spec("demo"), "    model: tiny\n", "    model: hub\n")
    edit(demo.spec("demo"), "    follow: main\n", f"    {revision}\n")
    found = seen(demo, places)
    assert (code in said(found)) if code else not {"NV401", "NV402"} & set(said(found))
    assert found.plan.model.tree == ""
    if code:
        (tmp_path / "hub/models--owner--name/snapshots" / ("b" * 40)).mkdir(parents=True)
        assert code not in said(seen(demo, places))


def test_what_is_not_there_at_all_is_refused(demo: Project, places: Places) -> None:
    with pytest.raises(Refused, match="NV107"):
        seen(demo, places, "other")
    with pytest.raises(Refused, match="NV107"):
        examine(demo, places, "none", "eager", Depth.SHOW, paranoid=False, progress=Silent())
    edit(demo.spec("demo"), "enable: [first]", "enable: [second]")
    with pytest.raises(Refused, match="NV106"):
        seen(demo, places)
