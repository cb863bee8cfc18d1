"""The artifacts of a bisect, with an engine that is made up: which one a trial loads, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from nvllm.bisect.artifacts import SetArtifacts
from nvllm.core import workload
from nvllm.core.plan import LaunchPlan, Workbench
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.image import identity
from nvllm.patches import seriesfile
from nvllm.serve.fresh import FreshInstances
from nvllm.trials import bench, probe
from nvllm.trials.trial import Built, Trial
from support import bless_world
from support.evidence_world import COMPILED, StandInInstances, SwitchedEngine
from support.plansamples import FrontEnd, build, places, project

SET = Built(("a", "b"), "", "", "image", 0.0)


@dataclass
class Compiler(SwitchedEngine):
    """An engine whose compiles differ in the bytes of one file. Those that it loads it LEAVES as they are, or not."""

    leaves: bool = True

    def start_workbench(self, made: Workbench, labels: Mapping[str, str]) -> str:
        container = super().start_workbench(made, labels)
        model = next(Path(made.directory).rglob("model"))
        model.write_bytes(model.read_bytes() + f"compile {len(self.benches)}".encode())
        return container

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        container = super().start(plan, labels)
        if not self.leaves:
            self.says("INFO Compiling a graph for compile range (1, 2048)")
        return container


@dataclass
class Trying:
    """A bench with two artifacts of each set, whose trials count."""

    trying: bench.EngineBench
    engine: Compiler
    trials: list[Trial] = field(default_factory=list)

    def tried(self, _chosen: tuple[str, ...]) -> int:
        return len(self.trials)

    def try_again(self) -> Trial:
        self.trials.append(self.trying.trial(SET))
        return self.trials[-1]


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> Trying:
    monkeypatch.setattr(workload, "SETTINGS", workload.SETTINGS[:1])
    monkeypatch.setattr(identity, "load_build", lambda *_: (build(COMPILED), []))
    monkeypatch.setattr(bench.EngineBench, "ensure_image", lambda *_: "image")
    front.body, front.longest = bless_world.answer(bless_world.TOKENS), 128
    engine = Compiler()
    instances = cast("FreshInstances", StandInInstances(engine, front, places(tmp_path)))
    monkeypatch.setattr(bench, "FreshInstances", lambda *_: instances)
    program = tmp_path / "probe.sh"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    test = probe.program(program, (), "", build_only=False)
    trying = bench.EngineBench(project(tmp_path), places(tmp_path), "demo", "eager", test, cast("Engine", engine))
    monkeypatch.setattr(seriesfile, "load", lambda *_: None)
    monkeypatch.setattr(bench, "with_own_sentinels", lambda of, *_: of)
    world = Trying(trying, engine)
    trying.artifacts = SetArtifacts(tmp_path / "artifacts", 2, world.tried, places(tmp_path), Silent())
    return world


def test_trials_load_the_artifacts_of_their_set_in_turn(made: Trying, tmp_path: Path) -> None:
    for _ in range(5):
        assert made.try_again().outcome == "good"
    first, second, *others = [one.artifact for one in made.trials]
    assert len({first, second}) == 2
    assert others == [first, second, first]
    assert len(made.engine.benches) == 2
    assert [one.cache.tree for one in made.engine.plans if one.cache is not None] == [
        one.artifact for one in made.trials
    ]
    assert {path.name for path in tmp_path.glob("artifacts/*/*") if path.is_dir()} == {"bootstrap", first, second}
    assert list(made.trying.places.staged.glob("*/*")) == []


def test_a_trial_without_artifacts_names_none(made: Trying) -> None:
    made.trying.artifacts = None
    assert made.try_again().artifact == ""
    assert made.engine.benches == []


def test_a_trial_whose_engine_compiled_again_proves_nothing(made: Trying) -> None:
    made.engine.leaves = False
    trial = made.try_again()
    assert (trial.outcome, trial.stage, trial.kind) == ("untestable", "boot", "compiled again")
    assert "Compiling a graph" in trial.said


def test_an_engine_that_saves_nothing_proves_nothing(made: Trying) -> None:
    made.engine.cold = ("INFO:     Application startup complete.",)
    trial = made.try_again()
    assert (trial.outcome, trial.stage, trial.kind) == ("untestable", "boot", "NV912")


def test_a_record_that_is_damaged_is_refused(made: Trying, tmp_path: Path) -> None:
    made.try_again()
    (record,) = tmp_path.glob("artifacts/*/artifact.json")
    record.write_text("{}")
    made.trials.clear()
    with pytest.raises(Refused) as caught:
        made.try_again()
    cures = {(refusal.code, refusal.cure) for refusal in caught.value.refusals}
    assert cures == {("NV853", f"rm -r {record.parent} && nvllm ablate --artifacts 2")}
