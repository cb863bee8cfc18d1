"""One artifact for all arms, with an engine that is made up: what is compiled, loaded by each leg, and found out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bless import compiled
from nvllm.core import workload
from nvllm.core.plan import CACHE
from nvllm.core.refusal import Refused
from nvllm.core.spec import Profile
from nvllm.evidence import alike, conclusion
from nvllm.evidence.arms import Arm, name
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.records import ArmState, Comparison, LegPhase, LegVerdict
from nvllm.trials.artifact import uncached
from support import evidence_samples
from support.evidence_world import COMPILED, World, artifact_world
from support.plansamples import FrontEnd

ARMS: tuple[Arm, ...] = ((), ("a",), ("b",), ("a", "b"))


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(workload, "SETTINGS", workload.SETTINGS[:1])
    return artifact_world(tmp_path, front)


def verdict(made: World, arm: Arm, run: int = 1) -> LegVerdict:
    kept = made.directory.verdict(name(arm), run)
    assert kept is not None
    return kept


def outcomes(compared: Comparison) -> list[str]:
    return [one.outcome for one in compared.arms]


def broken(made: World, arm: Arm) -> dict[str, str]:
    return {one.name: one.found for one in verdict(made, arm).checks if not one.holds}


def staged(made: World) -> Path:
    """Return the copy that the leg which runs now has mounted."""
    return next(Path(one.source) for one in made.engine.plans[-1].mounts if one.target == CACHE)


def test_every_arm_loads_what_was_compiled_once(made: World) -> None:
    compared = made.runner.run()
    legs = [verdict(made, arm) for arm in ARMS]
    (key,) = {one.compile_key for one in legs}
    record = compiled.record(made.directory.artifact(key), "")
    assert record is not None
    assert (outcomes(compared), len(made.engine.benches)) == (["passed"] * 4, 1)
    assert {one.tree for one in legs} == {record.tree.hash}
    assert [(one.dev, one.sentinels) for one in made.engine.plans] == [(True, arm) for arm in ARMS]
    assert {one.cache.tree for one in made.engine.plans if one.cache is not None} == {record.tree.hash}
    assert (made.directory.artifact(key) / "bootstrap" / "engine.log").exists()
    assert list(made.instances.places.staged.glob("*/*")) == []


def test_a_run_that_is_cold_or_of_an_eager_profile_loads_nothing(made: World) -> None:
    eager = replace(COMPILED.profiles["eager"], arguments={"enforce-eager": True})
    for cold, profile in ((True, COMPILED.profiles["eager"]), (False, eager)):
        made.runner.manifest = replace(made.runner.manifest, cold=cold)
        made.runner.build = replace(made.runner.build, spec=replace(COMPILED, profiles={"eager": profile}))
        shutil.rmtree(made.directory.path / "arms", ignore_errors=True)
        assert outcomes(made.runner.run()) == ["passed"] * 4
        assert {(verdict(made, arm).tree, verdict(made, arm).compile_key) for arm in ARMS} == {("", "")}
    assert made.engine.benches == []


def test_a_leg_that_compiled_is_invalid_and_named(made: World) -> None:
    def compiles(_body: bytes) -> None:
        if made.engine.plans and made.engine.plans[-1].sentinels == ("a",):
            made.engine.says("INFO Compiling a graph for compile range (1, 2048)")

    made.front.at_request = compiles
    assert outcomes(made.runner.run()) == ["passed", "invalid", "passed", "passed"]
    assert [*broken(made, ("a",))] == ["artifact"]
    assert "Compiling a graph" in verdict(made, ("a",)).reason


def test_a_leg_that_wrote_code_is_invalid(made: World) -> None:
    def compiles(_body: bytes) -> None:
        of_b = bool(made.engine.plans) and made.engine.plans[-1].sentinels == ("b",)
        made.engine.scratch = (f"{CACHE}/inductor_cache/aa/new.py",) if of_b else ()

    made.front.at_request = compiles
    assert outcomes(made.runner.run()) == ["passed", "passed", "invalid", "passed"]
    assert broken(made, ("b",)) == {"artifact": f"{CACHE}/inductor_cache/aa/new.py"}


def test_a_leg_whose_tree_was_changed_is_invalid_and_the_next_one_is_not(made: World) -> None:
    def tampers(_body: bytes) -> None:
        if made.engine.plans and made.engine.plans[-1].sentinels == ("a",):
            model = next(staged(made).rglob("model"))
            model.chmod(0o644)
            model.write_bytes(b"another pickle")

    made.front.at_request = tampers
    assert outcomes(made.runner.run()) == ["passed", "invalid", "passed", "passed"]
    (text,) = broken(made, ("a",)).values()
    assert text.endswith("model: changed")


def test_a_run_that_goes_on_loads_the_same_tree(made: World) -> None:
    made.runner.run()
    before = verdict(made, ())
    shutil.rmtree(made.directory.leg("a", 1))
    again = replace(made.runner)
    assert outcomes(again.run()) == ["passed"] * 4
    assert (verdict(made, ("a",)).tree, len(made.engine.benches)) == (before.tree, 1)


def test_a_tree_that_was_changed_or_has_gone_is_refused(made: World) -> None:
    made.runner.run()
    shutil.rmtree(made.directory.leg("a", 1))
    top = made.directory.artifact(verdict(made, ()).compile_key) / verdict(made, ()).tree
    model = next(top.rglob("model"))
    model.chmod(0o644)
    model.write_bytes(b"another pickle")
    for _ in ("changed", "gone"):
        with pytest.raises(Refused) as caught:
            replace(made.runner).run()
        assert {(one.code, one.cure) for one in caught.value.refusals} == {("NV907", "nvllm ablate --force")}
        shutil.rmtree(top, ignore_errors=True)
    assert len(made.engine.benches) == 1


def test_profiles_with_other_arguments_compile_for_themselves(made: World) -> None:
    profiles: dict[str, Profile] = {"eager": COMPILED.profiles["eager"]}
    profiles["wide"] = replace(profiles["eager"], arguments={"max-model-len": 64})
    profiles["alike"] = replace(profiles["eager"], description="another name")
    made.runner.build = replace(made.runner.build, spec=replace(COMPILED, profiles=profiles))
    states = tuple(ArmState(one, one, ("a", "b"), ()) for one in profiles)
    made.runner.manifest = replace(made.runner.manifest, kind="bench", ablated=(), arms=states)
    made.directory.begin(made.runner.manifest, force=True)
    made.runner.run()
    legs = {one: made.directory.verdict(one, 1) for one in profiles}
    keys = {one: leg.compile_key for one, leg in legs.items() if leg is not None}
    assert len(made.engine.benches) == 2
    assert keys["eager"] == keys["alike"] != keys["wide"]


def test_what_leaves_nothing_to_load() -> None:
    of = COMPILED.profiles["eager"]
    without = replace(of, environment={"VLLM_DISABLE_COMPILE_CACHE": "1"})
    assert uncached(COMPILED, of) == ""
    assert uncached(COMPILED, without) == "it keeps nothing that it compiles: VLLM_DISABLE_COMPILE_CACHE"


def test_a_finding_says_whether_its_arms_ran_the_same_code(made: World) -> None:
    made.runner.run()
    tree, compared = verdict(made, ()).tree[:12], made.directory.arms()
    assert alike.text(compared) == f"all loaded one artifact, tree {tree}"
    assert tree in (made.directory.path / "ANALYSIS.md").read_text()
    (page,) = [(made.directory.path / "report.html").read_text()]
    assert f"compiled code: all loaded one artifact, tree {tree}" in page
    document = json.loads((made.directory.path / "comparison.json").read_text())
    assert {len(one["trees"]) for one in document["artifacts"]} == {1}


def legs_of(arm: str, tree: str, key: str, phase: str = "import") -> ArmLegs:
    told = replace(
        evidence_samples.verdict(arm, 1, ()), tree=tree, compile_key=key, phases=(LegPhase(phase, 1.0, 1.0),)
    )
    return ArmLegs(arm, (), ((told, ()),))


def test_arms_of_which_some_are_blessed_are_named() -> None:
    def arm(name: str, tree: str, *, dev: bool) -> ArmLegs:
        ((leg, answers),) = legs_of(name, tree, "a" * 64).legs
        return ArmLegs(name, (), ((replace(leg, dev=dev), answers),))

    blessed, same = arm("P", "1" * 64, dev=False), arm("same key", "1" * 64, dev=True)
    other, cold = arm("Q", "2" * 64, dev=True), arm("R", "", dev=True)
    said = "blessed: P, same key; not blessed: Q, R; that is a part of their difference"
    for arms, notes in (([blessed, other, cold, same], (said,)), ([blessed, same], ()), ([other, cold], ())):
        compared = conclusion.of(replace(evidence_samples.manifest(()), kind="bench"), arms)
        assert tuple(one for one in compared.notes if one.startswith("blessed: ")) == notes


def test_how_it_is_said_that_arms_ran_other_code() -> None:
    one, other = legs_of("P", "1" * 64, "a" * 64), legs_of("Q", "2" * 64, "b" * 64)
    same, none = legs_of("R", "3" * 64, "a" * 64), legs_of("S", "", "")
    each = "trees P 111111111111, {}"
    assert alike.text([one, other]) == (
        f"their compile keys differ, so what was compiled is a part of the difference: {each.format('Q 222222222222')}"
    )
    assert alike.text([one, same]) == (
        f"they loaded different artifacts of one compile key: {each.format('R 333333333333')}"
    )
    assert alike.text([one, none]) == "P loaded what was compiled before, S did not"
    assert (alike.text([one]), alike.text([none, none])) == ("", "")


def test_that_each_leg_compiled_for_itself_is_noted(made: World) -> None:
    compared = made.runner.run()
    cold = [legs_of("P", "", "", "compile"), legs_of("Q", "", "")]
    assert alike.noted(compared, cold, {}).notes[len(compared.notes) :] == (
        "each leg compiled for itself in P: two compiles of one key can answer differently",
    )
