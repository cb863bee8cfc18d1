"""A bless with an engine that is made up and a front end that is real, until a test changes what either does.

The container engine is out of reach of unit tests. `FakeEngine` compiles by writing the sample cache into the
workbench that it is given, and says in its log what vLLM says. The whole on a real engine is the end-to-end suite's.
"""

from __future__ import annotations

import json
import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal, cast
from unittest import mock

from nvllm.bless.blessing import Bless
from nvllm.cache.blessings import Blessings
from nvllm.cache.pins import Pin, Pins
from nvllm.core import workload
from nvllm.core.paths import Places, Project
from nvllm.core.plan import CACHE, LaunchPlan, Workbench
from nvllm.core.progress import Silent
from nvllm.core.spec import BlessRules, GpuNeed
from nvllm.engine.engine import Engine
from nvllm.host import locks
from nvllm.host.facts import ContainerFact, ContainerState, EngineFacts, MemoryInUse, Usage
from nvllm.host.locks import Holder
from nvllm.serve import planner, supervisor
from nvllm.serve.examination import Examination
from support import blessings_world
from support.plansamples import GPUS, MODEL, SPEC, FrontEnd, build, places, wanted, with_profile

SAVED = f"INFO [decorators.py:1] saved AOT compiled function to {CACHE}/{blessings_world.AOT}/rank_0_0/model"
LOADED = f"INFO [decorators.py:2] Directly load AOT compilation from path {CACHE}/{blessings_world.AOT}/rank_0_0/model"
READY = (
    "INFO [kv_cache_utils.py:1869] GPU KV cache size: 52,428 tokens, Maximum",
    "INFO:     Application startup complete.",
)
TOKENS = list(range(16))


def answer(tokens: list[int]) -> bytes:
    choice = {"text": " fox", "token_ids": tokens}
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": len(tokens)}}).encode()


def nothing() -> None:
    pass


@dataclass
class FakeEngine:
    """An engine with at most one container, which says COLD when it compiles and WARM when it loads."""

    cold: tuple[str, ...] = (SAVED, *READY)
    warm: tuple[str, ...] = (LOADED, *READY)
    plans: list[LaunchPlan] = field(default_factory=list)
    benches: list[Workbench] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    status: ContainerState | None = None
    lines: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    scratch: tuple[str, ...] = (
        "/tmp/vllm_dist_1",
        f"{CACHE}/{blessings_world.LOCKS}/c45.lock",
        "/tmp/torchinductor_nvllm/precompiled_headers/c3.h.gch",
    )
    late: float = 0.0
    """Seconds by which the lines of a start come later than they are written, but for the first."""
    used: tuple[float, float] = (80.0, 25.0)
    """Processor seconds of the container that compiles, and of each that loads."""
    in_trial: Callable[[], None] = nothing
    """What happens when a container that loads has started."""
    later: Callable[[], object] = nothing
    """What happens whenever the supervisor looks how the container is."""

    def start_workbench(self, bench: Workbench, labels: Mapping[str, str]) -> str:
        self.benches.append(bench)
        if not any(Path(bench.directory).iterdir()):
            blessings_world.cache(Path(bench.directory))
            return self._started(bench.plan, labels, self.cold)
        return self._started(bench.plan, labels, self.warm)

    def start(self, plan: LaunchPlan, labels: Mapping[str, str]) -> str:
        self.plans.append(plan)
        made = self._started(plan, labels, self.warm)
        self.in_trial()
        return made

    def _started(self, plan: LaunchPlan, labels: Mapping[str, str], says: tuple[str, ...]) -> str:
        boot = f"{len(self.plans) + len(self.benches):064x}"
        self.status = ContainerState(None, out_of_memory=False)
        self.lines = queue.SimpleQueue()
        for number, text in enumerate(says):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + (self.late if number else 0.0)))
            self.lines.put(f"{stamp}.0Z {text}\n".encode())
        return boot

    def says(self, text: str) -> None:
        self.lines.put(f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}.0Z {text}\n".encode())

    def state(self, container_id: str) -> ContainerState | None:
        self.later()
        return self.status

    def facts(self) -> EngineFacts:
        return EngineFacts("20.10", "1.41", "overlay2", rootless=False, bridge_interface=None)

    def containers(self) -> tuple[ContainerFact, ...]:
        return ()

    def logs(self, container_id: str, *, follow: bool, tail: int | Literal["all"] = "all") -> Iterator[bytes]:
        lines = self.lines
        while (chunk := lines.get()) is not None:
            yield chunk

    def usage(self, container_id: str) -> Usage:
        return Usage(1 << 30, self.used[1] if self.plans else self.used[0])

    def memory_in_use(self, container_id: str) -> MemoryInUse:
        return MemoryInUse(1 << 30, 1 << 29)

    def scratch_files(self, container_id: str, interpreter: str) -> list[str]:
        return list(self.scratch)

    def stop(self, container_id: str, patience: int) -> None:
        self._gone("stopped")

    def kill(self, container_id: str) -> None:
        self.ended.append("killed")

    def remove(self, container_id: str) -> None:
        self._gone("removed")

    def _gone(self, how: str) -> None:
        self.ended.append(how)
        self.status = None
        self.lines.put(None)


@dataclass
class World:
    """A bless that will be accepted, and what is around it."""

    work: Bless
    engine: FakeEngine
    found: Examination
    places: Places
    held: Blessings
    pin: Pin


def on_a_gpu(found: Examination) -> Examination:
    """Return FOUND with a GPU, whose engine takes few and short requests."""
    assert found.build is not None
    profile = found.profile
    arguments = {**profile.arguments, "max-num-seqs": 2}
    changed = replace(profile, gpu=GpuNeed(("12.1",), "580.1"), arguments=arguments)
    spec = replace(found.build.spec, profiles={found.plan.profile: changed}, targets=("sm_121a",))
    plan = planner.plan(wanted(spec, gpus=GPUS, user=(os.geteuid(), os.getegid())))
    return replace(found, profile=changed, build=build(spec), plan=replace(plan, user=found.plan.user))


class Kernels:
    """Triton in the made-up ENGINE: compiles a variant of one kernel for each kind of prompt, with lines in the log.

    A cache that was blessed has the variants whose keys are the names of directories in ``triton``.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.unknown: set[str] = set()
        """Kinds of prompts that the bootstrap is not asked."""
        self._lock = Lock()

    def launch(self, body: bytes) -> None:
        prompt = json.loads(body)["prompt"]
        if isinstance(prompt, str):  # the probe
            return
        kind = "ONE" if len(prompt) == 1 else "DIVISIBLE" if len(prompt) % 16 == 0 else "OTHER"
        with self._lock:
            place = self._cache() / "triton" / kind
            if kind in self.unknown or place.is_dir():
                return
            self._engine.says(f"nvllm.kernels miss key={kind} name=conv.json")
            about = {"key": kind, "name": "conv", "arguments": kind}
            self._engine.says(f"nvllm.kernels compiled {json.dumps(about)}")
            if self._compiles():
                place.mkdir(parents=True)
                (place / "__grp__conv.json").write_text("{}")

    def _compiles(self) -> bool:
        return bool(self._engine.benches) and not self._engine.plans

    def _cache(self) -> Path:
        if self._compiles():
            return Path(self._engine.benches[-1].directory)
        return next(Path(one.source) for one in self._engine.plans[-1].mounts if one.target == CACHE)


def examined(front: FrontEnd, rules: BlessRules | None = None) -> tuple[Examination, FakeEngine]:
    """Return what an examination found of a blessed profile with RULES, without refusals, and the engine in it."""
    front.body = answer(TOKENS)
    front.longest = 128
    spec = with_profile(SPEC, blessed=True, port=front.port, bless=rules or BlessRules())
    engine = FakeEngine()
    plan = planner.plan(wanted(spec, user=(os.geteuid(), os.getegid())))
    # Nothing here runs as another user: files are the operator's own, and also root may be one.
    plan = replace(plan, user=f"{os.geteuid()}:{os.getegid()}")
    return (
        Examination(spec.profiles["eager"], plan, (MODEL,), (), (), cast("Engine | None", engine), build(spec)),
        engine,
    )


@contextmanager
def world(tmp_path: Path, front: FrontEnd, rules: BlessRules | None = None) -> Iterator[World]:
    """Yield a bless that asks a few of the sampling settings: `test_workload.py` and the real engine have all."""
    where = places(tmp_path)
    found, engine = examined(front, rules)
    plan = found.plan
    holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm bless demo --profile eager", plan.instance)
    held = Blessings.of_project(Project(tmp_path / "project"), where)
    with (
        locks.acquire_all(where.locks, supervisor.keys(plan), holder) as taken,
        Pins(where.pins).pin() as pin,
        mock.patch.object(workload, "SETTINGS", [workload.SETTINGS[index] for index in (0, 5, 8, 18)]),
    ):
        yield World(Bless(found, where, taken, Silent(), pin), engine, found, where, held, pin)


def everything_below(directory: Path) -> list[Any]:
    return sorted(directory.rglob("*"))
