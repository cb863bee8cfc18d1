"""A runner of evidence on an engine that is made up, whose patches can be broken in the ways that a harness must find.

`SwitchedEngine` says in its log what the patch `sentinels` says, for the files that are in its run directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from nvllm.core.paths import Places
from nvllm.core.plan import RUN_DIRECTORY, LaunchPlan
from nvllm.core.progress import Silent
from nvllm.engine.engine import Engine
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.evidence.records import RunManifest
from nvllm.evidence.runner import Runner
from nvllm.host import locks
from nvllm.host.facts import ContainerState
from nvllm.host.locks import HeldLocks, Holder
from nvllm.image.identity import Build
from nvllm.serve import planner, supervisor
from nvllm.serve.examination import Depth, Examination
from nvllm.serve.fresh import FreshInstances
from nvllm.trials.probing import LegProbe, QuestionProbe
from nvllm.trials.questions import Question
from support import bless_world, evidence_samples
from support.plansamples import MODEL, SPEC, FrontEnd, build, places, wanted, with_profile

IDLE = 'vllm:num_requests_running{engine="0"} 0.0\nvllm:kv_cache_usage_perc{engine="0"} 0.0\n'
BUSY = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'

QUESTIONS = tuple(Question(number, f"{number} + 1?", str(number + 1)) for number in range(1, 5))


@dataclass
class SwitchedEngine(bless_world.FakeEngine):
    """An engine with the switchable patches A and B. Those that are DEAD never fire, STUCK ones always do."""

    dead: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    extra: list[str] = field(default_factory=list)
    """Files that somebody else put into the run directory."""
    broken: tuple[str, ...] | None = None
    """The sentinels with which it does not start."""

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        on = set(plan.sentinels)
        lines = [f"nvllm.sentinel name={one} enabled={str(one in on).lower()}" for one in ("a", "b")]
        lines += [f"nvllm.sentinel name={one} first_fire" for one in sorted((on - self.dead) | self.stuck)]
        loaded = [bless_world.LOADED] if plan.cache is not None else []
        self.warm = (*lines, *loaded, *bless_world.READY)
        container = super().start(plan, labels)
        if plan.sentinels == self.broken:
            self.status = ContainerState(1, out_of_memory=False)
            self.lines.put(None)
        return container

    def run_files(self, container_id: str, interpreter: str) -> list[str]:
        (source,) = [one.source for one in self.plans[-1].mounts if one.target == RUN_DIRECTORY]
        return [f"{RUN_DIRECTORY}/{one.name}" for one in Path(source).iterdir()] + self.extra


@dataclass
class StandInInstances:
    """What `FreshInstances` does, without a host to look at."""

    engine: SwitchedEngine
    front: FrontEnd
    places: Places
    builds: list[Build] = field(default_factory=list)

    @contextmanager
    def examined(self, of: Build, profile: str, _depth: Depth) -> Iterator[tuple[Examination, HeldLocks]]:
        self.builds.append(of)
        plan = planner.plan(wanted(of.spec, profile_name=profile, user=(os.geteuid(), os.getegid())))
        plan = replace(plan, user=f"{os.geteuid()}:{os.getegid()}", port=self.front.port)
        found = Examination(of.spec.profiles[profile], plan, (MODEL,), (), (), cast("Engine", self.engine), of)
        holder = Holder(os.getpid(), "2026-11-22T12:00:00Z", "nvllm ablate", plan.instance)
        with locks.acquire_all(self.places.locks, supervisor.keys(plan), holder) as taken:
            yield found, taken


@dataclass
class World:
    """A runner, and what is around it."""

    runner: Runner
    engine: SwitchedEngine
    front: FrontEnd
    instances: StandInInstances

    @property
    def directory(self) -> EvidenceDirectory:
        return self.runner.directory


def probe(questions: Sequence[Question] = QUESTIONS, floor: float | None = None) -> LegProbe:
    return QuestionProbe("gsm8k", questions, 42, 16, 30.0, 1, floor)


COMPILED = with_profile(SPEC, sentinels=("a", "b"), arguments={"max-model-len": 128, "max-num-seqs": 2})
"""The sample with a profile that compiles; its name is that of the sample all the same."""


def artifact_world(tmp_path: Path, front: FrontEnd) -> World:
    """Return what `world` does, of a profile that compiles and whose arms load what is compiled once."""
    made = world(tmp_path, front, probe())
    front.longest = 128
    made.runner.build = build(COMPILED)
    made.runner.manifest = replace(made.runner.manifest, cold=False)
    return made


def world(tmp_path: Path, front: FrontEnd, asked: LegProbe) -> World:
    """Return a runner of the four arms over A and B with one run each."""
    front.body = bless_world.answer(bless_world.TOKENS)
    front.metrics = IDLE
    engine = SwitchedEngine()
    manifest: RunManifest = replace(
        evidence_samples.manifest((), ("a",), ("b",), ("a", "b"), runs=1), probe=asked.state
    )
    directory = EvidenceDirectory(tmp_path / "evidence")
    instances = StandInInstances(engine, front, places(tmp_path))
    of = build(with_profile(SPEC, sentinels=("a", "b")))
    held = directory.begin(manifest, force=False)
    runner = Runner(directory, held, of, asked, cast("FreshInstances", instances), Silent())
    return World(runner, engine, front, instances)
