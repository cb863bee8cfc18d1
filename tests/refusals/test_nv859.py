"""NV859: a run that goes on would load other compiled code than its legs did before."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core import workload
from nvllm.core.refusal import Refusal, Refused
from nvllm.evidence.runner import Runner
from support.evidence_world import COMPILED, World, artifact_world
from support.plansamples import FrontEnd, build, with_profile


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> World:
    """A run whose arm ``none`` has one leg of two."""
    monkeypatch.setattr(workload, "SETTINGS", workload.SETTINGS[:1])
    world = artifact_world(tmp_path, front)
    world.runner.manifest = replace(world.runner.manifest, arms=world.runner.manifest.arms[:1], runs=2)
    world.runner.manifest = world.directory.begin(world.runner.manifest, force=True)
    world.runner.run()
    shutil.rmtree(world.directory.leg("none", 2))
    return world


def refused(runner: Runner) -> Refusal:
    with pytest.raises(Refused) as caught:
        runner.run()
    assert caught.value.exit_code == 3
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV859", "arm none, run 1")
    assert refusal.cure == "nvllm ablate --force"
    return refusal


def test_a_profile_that_was_edited_is_not_compiled_for_a_run_that_began(made: World) -> None:
    edited = build(with_profile(COMPILED, environment={"OMP_NUM_THREADS": "3"}))
    assert refused(replace(made.runner, build=edited)).expected.startswith("the compile key ")
    assert len(made.engine.benches) == 1


def test_what_has_gone_with_its_record_is_not_replaced_by_another_compile(made: World) -> None:
    shutil.rmtree(made.directory.path / "artifacts")
    verdict = made.directory.leg("none", 1) / "verdict.json"
    loaded = made.directory.verdict("none", 1)
    assert loaded is not None
    verdict.write_text(verdict.read_text().replace(loaded.tree, "7" * 64))  # the stand-in compiles one tree alone
    assert refused(replace(made.runner)).expected == "the tree 777777777777 of before"
