"""Examining a profile of a project on disk, on this host: everything that is wrong at once, and the launch plan.

No engine is asked here: DOCKER_HOST names a socket that is not there. What a real engine answers is the
end-to-end suite's.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache import manifest, promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.cachetree import Tree
from nvllm.cache.store import TreeStore
from nvllm.core import clock, durable, explain
from nvllm.core.paths import Places, Project
from nvllm.core.plan import CACHE, FORCE_LOAD, PlannedCache
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.engine import engine
from nvllm.engine.engine import Engine
from nvllm.host import facts as host
from nvllm.host import survey
from nvllm.host.facts import ImageFacts
from nvllm.image import identity, presence
from nvllm.image.buildrecord import Record, RecordedLayer
from nvllm.models.memo import HashCache
from nvllm.serve import examination, planner, servehash, staged_cache
from nvllm.serve.examination import Depth, Examination, Instance, examine, examine_build
from nvllm.serve.stopping import Orphan
from support import blessings_world, locks, question_samples, tampering
from support.plansamples import MODEL, MODEL_FILES, edit, put_model, shorten_series, write_lock

pytestmark = pytest.mark.usefixtures("no_engine")


def examined(demo: Project, places: Places, profile: str = "eager", *, paranoid: bool = False) -> Examination:
    return examine(demo, places, "demo", profile, Depth.WHOLE, paranoid=paranoid, progress=Silent())


def refused(demo: Project, places: Places, profile: str = "eager") -> list[Refusal]:
    with pytest.raises(Refused) as caught:
        examined(demo, places, profile)
    return list(caught.value.refusals)


def codes(found: Examination) -> list[str]:
    """Return what was refused, without what this host may lack."""
    return sorted({refusal.code for refusal in found.refusals} - {"NV505", "NV506", "NV507"})


def test_a_build_is_examined_under_another_name_and_on_another_port(demo: Project, places: Places) -> None:
    usual = examined(demo, places).plan
    made, _ = identity.load_build(demo, "demo", None)
    instance = Instance("nvllm-demo-eager-other", "eager", usual.port + 1)
    found = examine_build(demo, places, made, instance, engine.connect(), Depth.UNBLESSED, HashCache.none(), Silent())
    run = str(places.runs / instance.name / "run")
    assert found.plan.mounts[0].source == run
    assert found.plan == dataclasses.replace(
        usual,
        instance=instance.name,
        port=instance.port,
        mounts=(dataclasses.replace(usual.mounts[0], source=run), *usual.mounts[1:]),
    )


# A profile


def test_an_unknown_profile_is_refused_with_the_names(demo: Project, places: Places) -> None:
    (refusal,) = refused(demo, places, "lower8")
    assert (refusal.code, refusal.where) == ("NV107", "images/demo.yaml: .profiles")
    assert (refusal.expected, refusal.found) == ("one of eager", "lower8")
    assert refusal.cure == "nvllm serve demo --profile eager"


def test_the_plan_is_there_however_much_is_refused(demo: Project, places: Places) -> None:
    found = examined(demo, places)
    assert {"NV401", "NV510", "NV602"} <= set(codes(found))
    assert found.engine is None
    assert (found.plan.instance, found.plan.image_id) == ("nvllm-demo-eager", "")
    assert [mount.target for mount in found.plan.mounts] == ["/run/nvllm"]


def test_everything_that_is_wrong_is_said_at_once(demo: Project, places: Places) -> None:
    edit(demo.spec("demo"), "torch==2.13.0+cpu", "torch==2.13.1+cpu")
    shorten_series(demo)
    assert codes(examined(demo, places)) == ["NV202", "NV203", "NV401", "NV510", "NV602"]


def test_a_model_that_is_there_is_mounted_file_by_file(demo: Project, places: Places) -> None:
    directory = put_model(places)
    found = examined(demo, places)
    assert codes(found) == ["NV510", "NV602"]
    assert {mount.target: mount.source for mount in found.plan.mounts[1:]} == {
        f"/models/tiny/{path}": str(directory / path) for path in MODEL_FILES
    }
    assert found.models == (MODEL,)


def make_drafting(demo: Project) -> None:
    """Let the profile have a draft model, which is another name for what the sample model is."""
    text = demo.spec("demo").read_text()
    tiny = text[text.index("  tiny:\n") : text.index("  hub:\n")]
    edit(demo.spec("demo"), "  hub:\n", tiny.replace("tiny:", "small:", 1) + "  hub:\n")
    edit(demo.spec("demo"), "    model: tiny\n", "    model: tiny\n    draft: small\n")
    write_lock(demo, models={**locks.GOOD.models, "tiny": MODEL, "small": MODEL})


def test_a_draft_model_is_examined_and_mounted_as_every_model(demo: Project, places: Places) -> None:
    plain = examined(demo, places).plan
    make_drafting(demo)
    put_model(places)
    found = examined(demo, places)
    missing = [one for one in found.refusals if one.code == "NV401"]
    assert [one.where for one in missing] == [str(places.models / "small")]
    assert [one.cure for one in missing] == ["nvllm model make demo small"]
    directory = put_model(places, "small")
    found = examined(demo, places)
    assert codes(found) == ["NV510", "NV602"]
    assert {one.target: one.source for one in found.plan.mounts if one.target.startswith("/drafts/")} == {
        f"/drafts/small/{path}": str(directory / path) for path in MODEL_FILES
    }
    assert found.models == (MODEL, MODEL)
    paths = {one.path for one in explain.differences(servehash.factors(plain), servehash.factors(found.plan))}
    assert paths == {".command", ".draft"}
    (directory / "config.json").write_bytes(b"{ }")
    assert "NV403" in codes(examined(demo, places))


def test_a_draft_model_that_the_lock_lacks(demo: Project, places: Places) -> None:
    make_drafting(demo)
    write_lock(demo, models={**locks.GOOD.models, "tiny": MODEL})
    missing = [one for one in refused(demo, places) if "small" in one.expected]
    assert [(one.code, one.cure) for one in missing] == [("NV202", "nvllm lock demo")]


def test_the_serve_hash_does_not_depend_on_what_is_missing(demo: Project, places: Places) -> None:
    before = examined(demo, places).plan
    put_model(places)
    after = examined(demo, places).plan
    assert before.serve_hash == after.serve_hash
    assert before.mounts != after.mounts


def test_a_changed_model_file_is_refused_and_named(demo: Project, places: Places) -> None:
    path = put_model(places) / "sub/weights"
    path.write_bytes(b"WEIGHTS")
    found = examined(demo, places)
    assert [refusal.where for refusal in found.refusals if refusal.code == "NV403"] == [str(path)]


def test_a_paranoid_examination_trusts_no_memory(
    demo: Project, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memo says that the changed file has the locked hash; nobody but its owner can make it say so."""
    monkeypatch.setattr("nvllm.models.memo.SETTLED", -(10**18))
    monkeypatch.setattr("nvllm.models.memo.file_system", lambda _: "ext4")  # wherever the tests' files lie
    path = put_model(places) / "sub/weights"
    assert "NV403" not in codes(examined(demo, places))
    memo = places.state / "verified.json"
    path.write_bytes(b"WEIGHTS")
    status = path.stat()
    key = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
    block = base64.b64encode(hashlib.sha256(b"WEIGHTS").digest()[:16]).decode()
    memo.write_text(json.dumps({"schema": "nvllm.memo/2", "files": {key: [MODEL.files[1].sha256, 2**20, block]}}))
    memo.chmod(0o600)
    assert "NV403" not in codes(examined(demo, places))
    assert "NV403" in codes(examined(demo, places, paranoid=True))


def test_a_preview_without_a_locked_model_still_shows_the_plan_and_the_rest(demo: Project, places: Places) -> None:
    write_lock(demo, models={"hub": locks.GOOD.models["hub"]})
    found = examine(demo, places, "demo", "eager", Depth.SHOW, paranoid=False, progress=Silent())
    assert (found.plan.instance, found.plan.serve_hash) == ("nvllm-demo-eager", "")
    assert {"NV202", "NV401", "NV510"} <= {refusal.code for refusal in found.refusals}
    (missing,) = [refusal for refusal in found.refusals if refusal.code == "NV202"]
    assert (missing.expected, missing.cure) == ("the model tiny", "nvllm lock demo")


def test_a_model_that_the_lock_lacks_is_refused_with_what_else_is_wrong(demo: Project, places: Places) -> None:
    models = {"hub": locks.GOOD.models["hub"]}
    write_lock(demo, models=models, inputs="2" * 64)
    found = refused(demo, places)
    host = {"NV505", "NV506", "NV507"}  # what this host may lack
    assert [one.code for one in found if one.code not in host] == ["NV202", "NV202", "NV510"]
    assert {refusal.expected for refusal in found} >= {"the model tiny"}


def test_examining_twice_gives_the_same_plan(demo: Project, places: Places) -> None:
    put_model(places)
    assert examined(demo, places).plan == examined(demo, places).plan


def test_what_is_examined_is_what_the_planner_makes(demo: Project, places: Places) -> None:
    found = examined(demo, places)
    assert found.plan.user == planner.container_user(os.geteuid(), os.getegid())
    assert found.plan.build_hash == identity.load_build(demo, "demo", None)[0].build_hash


class Holding(Engine):
    """An engine that holds one image, which says of itself what BUILD_HASH it has; three stores are not at hand."""

    def __init__(self, held: ImageFacts, build_hash: str) -> None:
        self.held = held
        self.build_hash = build_hash

    def image(self, reference: str) -> ImageFacts | None:
        return self.held

    def read_file(self, image_id: str, path: str) -> bytes | None:
        return json.dumps({"build_hash": self.build_hash}).encode()


@pytest.mark.parametrize(
    ("name", "diff_ids", "said"),
    [
        ("sha256:config", ("sha256:base", "sha256:one"), []),
        ("sha256:manifest", ("sha256:base", "sha256:one"), []),
        ("sha256:another", ("sha256:base", "sha256:one"), ["NV303"]),
        ("sha256:manifest", (), ["NV303"]),
        ("sha256:config", ("sha256:base", "sha256:other"), ["NV303"]),
    ],
)
def test_the_image_is_the_one_on_record_by_either_id_and_by_its_layers(
    demo: Project, name: str, diff_ids: tuple[str, ...], said: list[str]
) -> None:
    made, _ = identity.load_build(demo, "demo", None)
    layers = (RecordedLayer("one", "sha256:one", 1),)
    record = Record("demo", made.build_hash, "sha256:config", layers, "sha256:manifest")
    held = Holding(ImageFacts(name, diff_ids, (), 1), made.build_hash)
    assert [one.code for one in presence.refusals(made, record, held)] == said


def test_an_image_by_a_detour_is_no_image(demo: Project, places: Places) -> None:
    assert examined(demo, places).plan.mounts[0].source == str(places.runs / "nvllm-demo-eager/run")
    with pytest.raises(Refused) as caught:
        examine(demo, places, "./demo", "eager", Depth.WHOLE, paranoid=False, progress=Silent())
    assert [one.code for one in caught.value.refusals] == ["NV108"]


# A blessed profile


def make_blessed(demo: Project) -> None:
    edit(demo.spec("demo"), "    port: 8000\n", "    port: 8000\n    blessed: true\n")
    edit(demo.spec("demo"), "enforce-eager: true", "enforce-eager: false")


def bless_it(demo: Project, places: Places, tmp_path: Path, **changes: Any) -> Tree:
    """Make the profile blessed, and bless it with the sample cache in this host's store."""
    make_blessed(demo)
    put_model(places)
    tree = TreeStore(places.trees).adopt(blessings_world.cache(tmp_path / "fresh"), blessings_world.CURE)
    plan = examine(demo, places, "demo", "eager", Depth.UNBLESSED, paranoid=False, progress=Silent()).plan
    promotion.promote(Blessings(demo.blessed, places.blessings), blessings_world.bless(tree, plan, **changes))
    return tree


def test_a_blessed_profile_without_a_blessing_is_refused_with_all_the_rest(demo: Project, places: Places) -> None:
    make_blessed(demo)
    found = examined(demo, places)
    assert {"NV401", "NV510", "NV602", "NV901"} <= set(codes(found))
    assert (found.manifest, found.plan.cache) == (None, None)


def test_a_blessed_profile_loads_its_cache_and_nothing_else(demo: Project, places: Places, tmp_path: Path) -> None:
    tree = bless_it(demo, places, tmp_path)
    found = examined(demo, places)
    assert not {code for code in codes(found) if code.startswith("NV9")}
    assert found.manifest is not None
    assert found.plan.cache == PlannedCache(tree.hash, CACHE, tree.seeds)
    assert found.plan.environment[FORCE_LOAD] == "1"
    bare = examine(demo, places, "demo", "eager", Depth.UNBLESSED, paranoid=False, progress=Silent())
    assert FORCE_LOAD not in bare.plan.environment
    assert found.plan.serve_hash == bare.plan.serve_hash == servehash.serve_hash(found.plan)


def test_a_blessing_of_another_cpu_is_drift(
    demo: Project, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other CPU is made up: there is only one kind in a machine."""
    bless_it(demo, places, tmp_path)
    other = dataclasses.replace(host.cpu(Path("/proc")), kind="another kind")
    monkeypatch.setattr(host, "cpu", lambda _: other)
    (found,) = [one for one in examined(demo, places).refusals if one.code.startswith("NV9")]
    assert (found.code, found.found) == ("NV910", "another kind")
    assert found.where.endswith(": .factors.cpu.kind")


def test_a_profile_that_requires_a_signature_refuses_what_is_not_signed(
    demo: Project, places: Places, tmp_path: Path
) -> None:
    bless_it(demo, places, tmp_path)
    rules = "    blessed: true\n    bless: {signers: manifests/allowed_signers}\n"
    edit(demo.spec("demo"), "    blessed: true\n", rules)
    (found,) = [one for one in examined(demo, places).refusals if one.code.startswith("NV9")]
    assert found.code == "NV909"
    assert found.expected == f"a signature by a signer in {demo.root / 'manifests/allowed_signers'}"


@pytest.mark.parametrize(("days", "expected"), [(2, ["NV905"]), (4, [])])
def test_a_profile_says_how_old_a_blessing_may_be(
    demo: Project, places: Places, tmp_path: Path, days: int, expected: list[str]
) -> None:
    bless_it(demo, places, tmp_path, created=clock.stamp(time.time() - 3 * manifest.DAY))
    edit(demo.spec("demo"), "    blessed: true\n", f"    blessed: true\n    bless: {{valid-days: {days}}}\n")
    found = examined(demo, places)
    assert [one for one in codes(found) if one.startswith("NV9")] == expected


@pytest.mark.parametrize("kind", ["a byte", "gone"])
def test_a_stored_cache_that_changed_is_refused_before_anything_starts(
    demo: Project, places: Places, tmp_path: Path, kind: str
) -> None:
    tree = bless_it(demo, places, tmp_path)
    place = TreeStore(places.trees).path(tree.hash)
    if kind == "gone":
        TreeStore(places.trees).remove(tree.hash)
    else:
        path = blessings_world.writable(place / "modelinfos/Lfm2.json")
        path.write_bytes(b"[]")
    found = examined(demo, places)
    assert "NV907" in codes(found)
    assert found.manifest is None


def test_a_serve_reads_its_cache_once(
    demo: Project, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a start depends on are the bytes of the copy, and those are read while they are copied."""
    tree = bless_it(demo, places, tmp_path)
    opened: list[str] = []

    def reached(point: str, path: str = "") -> None:
        if point == "opened":
            opened.append(path)

    monkeypatch.setattr(durable, "reached", reached)
    found = examine(demo, places, "demo", "eager", Depth.BLESSED, paranoid=False, progress=Silent())
    assert opened == []
    with staged_cache.staged(found, places) as ready:
        assert ready is not None
    once = sorted(file.path for file in tree.files)
    assert sorted(opened) == once
    opened.clear()
    assert examined(demo, places).manifest == found.manifest
    assert sorted(opened) == once, "a dry run stages nothing, so it reads what lies there"


@pytest.mark.parametrize("name", tampering.TAMPERINGS)
def test_a_serve_refuses_every_tampering_before_anything_starts(
    demo: Project, places: Places, tmp_path: Path, name: str
) -> None:
    tree = bless_it(demo, places, tmp_path)
    path = "modelinfos/Lfm2.json"
    tampering.TAMPERINGS[name](TreeStore(places.trees).path(tree.hash) / path, tmp_path / "outside")
    found = examine(demo, places, "demo", "eager", Depth.BLESSED, paranoid=False, progress=Silent())
    assert not {code for code in codes(found) if code.startswith("NV9")}
    with pytest.raises(Refused) as caught, staged_cache.staged(found, places):
        raise AssertionError("it may not come so far")
    assert {one.code for one in caught.value.refusals} == {"NV907"}
    assert list((places.staged / found.plan.instance).iterdir()) == []
    assert "NV907" in codes(examined(demo, places)), "nor would a dry run or doctor let it pass"
    found = examine(demo, places, "demo", "eager", Depth.START, paranoid=False, progress=Silent())
    assert "NV907" in codes(found), "said with all the rest where something else refuses"


def test_a_start_has_its_cache_hashed_before_an_orphan_is_ended(
    demo: Project, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orphan works. It is made up, and so is a host that refuses nothing: no engine is at hand."""
    tree = bless_it(demo, places, tmp_path)
    TreeStore(places.trees).remove(tree.hash)
    monkeypatch.setattr(survey, "outcomes", lambda *_: ())
    found = examine(demo, places, "demo", "eager", Depth.START, paranoid=False, progress=Silent())
    assert found.refusals == ()
    orphan = Orphan("1" * 64, None)
    monkeypatch.setattr(examination, "after_orphan", lambda _places, found: dataclasses.replace(found, orphan=orphan))
    found = examine(demo, places, "demo", "eager", Depth.START, paranoid=False, progress=Silent())
    assert [one.code for one in found.refusals] == ["NV907"]


def test_a_profile_that_is_not_blessed_asks_for_no_blessing(demo: Project, places: Places) -> None:
    assert not {code for code in codes(examined(demo, places)) if code.startswith("NV9")}


def test_what_is_staged_is_mounted_and_goes_with_the_context(demo: Project, places: Places, tmp_path: Path) -> None:
    bless_it(demo, places, tmp_path)
    found = examined(demo, places)
    with staged_cache.staged(found, places) as ready:
        assert ready is not None
        (copy,) = [Path(mount.source) for mount in ready.plan.mounts if mount.target == CACHE]
        assert copy.is_relative_to(places.staged / found.plan.instance)
        assert (copy / "modelinfos/Lfm2.json").read_bytes() == b"{}"
    assert list((places.staged / found.plan.instance).iterdir()) == []


def test_nothing_is_staged_for_a_profile_that_is_not_blessed(demo: Project, places: Places) -> None:
    with staged_cache.staged(examined(demo, places), places) as ready:
        assert ready is None
    assert not places.staged.exists()


def test_a_blessing_without_the_evaluation_that_the_profile_demands(
    demo: Project, places: Places, tmp_path: Path
) -> None:
    bless_it(demo, places, tmp_path)
    before = examined(demo, places).plan.serve_hash
    rules = "    bless: {evaluation: {kind: questions, file: sums.jsonl, floor: 9/10}}\n"
    edit(demo.spec("demo"), "    blessed: true\n", f"    blessed: true\n{rules}")
    without_file = examined(demo, places)
    question_samples.write(demo.root / "sums.jsonl", 3)
    found = examined(demo, places)
    assert "NV109" in codes(without_file)
    (refusal,) = [one for one in found.refusals if one.code.startswith("NV9")]
    assert (refusal.code, refusal.found) == ("NV919", "none")
    assert found.manifest is None
    assert found.plan.serve_hash == before, "it says how the cache was proved, not what is served"
