"""Rounds of requests on a made-up engine that compiles kernels as Triton does: for each kind of argument."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bless import blessing, coverage
from nvllm.bless.blessing import Bless
from nvllm.bless.preflight import BlessRequest, preflight
from nvllm.cache import manifest
from nvllm.cache.blessings import Blessing
from nvllm.cache.manifest import Manifest
from nvllm.core import workload
from nvllm.core.plan import CACHE
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.serve import staged_cache
from nvllm.serve.kernel_reports import KernelReports
from nvllm.serve.timeline import MissingKernel
from support import bless_world, blessings_world
from support.bless_world import FakeEngine, Kernels, World
from support.plansamples import FrontEnd

REQUEST = BlessRequest(boots=2, unsafe=True)


@pytest.fixture
def kernels(made: World, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """The kernels of a bless on a GPU, where no prompt is longer than 32 tokens."""
    steps, joint_steps = workload.steps, workload.joint_steps
    # Of a round every length, and the sampling settings, which come last: `test_workload.py` has all of it.
    monkeypatch.setattr(
        workload, "steps", lambda of, number: (*steps(of, number)[: len(workload.lengths(of))], *steps(of, number)[-6:])
    )
    monkeypatch.setattr(workload, "joint_steps", lambda of, number: joint_steps(of, number)[:2])
    monkeypatch.setattr(coverage, "LOG_DELAY", 0.02)
    front.longest = 32
    found = bless_world.on_a_gpu(made.found)
    made.found, made.work = found, Bless(found, made.places, made.work.held_locks, Silent(), made.pin)
    compiled = Kernels(made.engine)
    front.at_request = compiled.launch
    yield compiled
    front.at_request = None


def blessed(made: World, request: BlessRequest = REQUEST, old: Blessing | None = None) -> Manifest:
    base = old.manifest if old is not None else None
    made.work = Bless(made.found, made.places, made.work.held_locks, Silent(), made.pin)
    new = blessing.new_manifest(made.found, made.held, made.work.run(request, base), request, time.time())
    place = blessing.promote(made.held, new, old, None)
    assert manifest.read(place, str(place)) == new
    return new


def test_a_bless_asks_until_no_kernel_is_new(made: World, kernels: Kernels, front: FrontEnd) -> None:
    new = blessed(made)
    assert new.coverage is not None
    assert new.coverage.new == (3, 0, 0)
    assert [(one.name, one.variants) for one in new.coverage.kernels] == [("conv", 3)]
    assert new.cold.kernels == 3
    keys = {file.path.split("/")[1] for file in new.tree.files if file.path.startswith("triton/")}
    assert keys == {"ONE", "DIVISIBLE", "OTHER"}
    lengths = {len(prompt) for body in front.asked if isinstance(prompt := json.loads(body)["prompt"], list)}
    assert {1, 2, 15, 16, 17, 31} <= lengths


def test_a_trial_that_compiles_a_kernel_is_rejected_with_its_name(
    made: World, kernels: Kernels, front: FrontEnd
) -> None:
    kernels.unknown = {"ONE"}

    def known() -> None:
        kernels.unknown = set()

    made.engine.in_trial = known
    with pytest.raises(Refused) as caught:
        blessed(made)
    assert {(one.code, one.expected) for one in caught.value.refusals} == {("NV912", "every kernel in a cache")}
    assert "key=ONE name=conv.json" in {one.found for one in caught.value.refusals}


def test_a_blessing_is_extended_by_the_kernels_that_it_lacks(made: World, kernels: Kernels, front: FrontEnd) -> None:
    kernels.unknown = {"ONE"}
    first = blessed(made)
    kernels.unknown = set()
    reports = KernelReports(made.places.kernels)
    reports.add(first.serve_hash, [MissingKernel("ONE", "conv", 1.0, "n: 1"), MissingKernel("RARE", "conv", 1.0)])
    made.engine.plans.clear()
    request = replace(REQUEST, extend=True)
    old = preflight(made.found, made.held, request, None, time.time())
    second = blessed(made, request, old)
    assert second.version == 2
    assert {file.path for file in first.tree.files} < {file.path for file in second.tree.files}
    assert (first.coverage, second.coverage) != (None, None)
    assert first.coverage is not None
    assert second.coverage is not None
    assert first.coverage.new == (2, 0, 0)
    assert second.coverage.new == (3, 0, 0, 0, 0)  # the rounds that the trials ask, and two further ones
    assert second.cold == replace(first.cold, kernels=first.cold.kernels + 1)
    assert [one.key for one in reports.settle(second.serve_hash, second.tree)] == ["RARE"]
    assert [one.key for one in reports.read(second.serve_hash)] == ["RARE"]
    modes = {file.path: file.mode for file in second.tree.files}
    assert all(modes[file.path] == file.mode for file in first.tree.files)
    assert list(staged_cache.directory(made.places, made.found.plan.instance).iterdir()) == []


def test_a_blessing_that_lacks_nothing_is_not_extended(made: World, kernels: Kernels) -> None:
    blessed(made)
    made.engine.plans.clear()
    request = replace(REQUEST, extend=True)
    old = preflight(made.found, made.held, request, None, time.time())
    with pytest.raises(Refused) as caught:
        blessed(made, request, old)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.expected) == ("NV912", "a kernel that the blessed cache lacks")


def test_without_a_blessing_there_is_nothing_to_extend(made: World) -> None:
    with pytest.raises(Refused) as caught:
        preflight(made.found, made.held, replace(REQUEST, extend=True), None, time.time())
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV108", "--extend")]


def test_a_revoked_cache_is_not_extended(made: World, kernels: Kernels) -> None:
    new = blessed(made)
    made.held.revocations.add(new.tree_hash, "a test", time.time())
    with pytest.raises(Refused) as caught:
        preflight(made.found, made.held, replace(REQUEST, extend=True), None, time.time())
    assert [one.code for one in caught.value.refusals] == ["NV903"]


def test_an_engine_that_never_stops_to_compile_is_given_up(
    made: World, kernels: Kernels, front: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "MOST_ROUNDS", 2)
    front.at_request = lambda body: made.engine.says(f"nvllm.kernels miss key={hash(body)} name=conv.json")
    with pytest.raises(Refused) as caught:
        blessed(made)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.expected) == ("NV912", "rounds of requests that are answered")
    assert refusal.found.startswith("2 rounds of requests, and still new kernels: ")


@pytest.mark.parametrize(("status", "fails"), [(500, True), (400, False)])
def test_only_a_setting_that_the_engine_does_not_have_may_be_refused(
    made: World, kernels: Kernels, front: FrontEnd, status: int, fails: bool
) -> None:
    def answer(body: bytes) -> None:
        front.status = status if "min_p" in json.loads(body) else 200

    front.at_request = answer
    if not fails:
        made.engine.says("")
        assert blessed(made).coverage is not None
        return
    with pytest.raises(Refused) as caught:
        blessed(made)
    assert caught.value.refusals[0].found.startswith("HTTP 500 for a prompt of ")


def test_an_engine_that_does_not_say_how_long_requests_may_be(made: World, kernels: Kernels, front: FrontEnd) -> None:
    front.longest = None
    with pytest.raises(Refused) as caught:
        blessed(made)
    assert "no list of models" in caught.value.refusals[0].found


class Graphs:
    """Inductor in the made-up ENGINE: compiles a graph at the first request with ``logprobs``, and at no other one."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.forgetful = False
        """Whether a start that loads compiles the graph again."""

    def compile(self, body: bytes) -> None:
        if b'"logprobs"' not in body or (self._engine.plans and not self.forgetful):
            return
        path = f"{blessings_world.AOT}/inductor_cache/xy/cxy{len(self._engine.plans)}.py"
        if not self._engine.plans:
            place = Path(self._engine.benches[-1].directory) / path
            place.parent.mkdir(exist_ok=True)
            place.write_text("call = None")
        self._engine.scratch = tuple({*self._engine.scratch, f"{CACHE}/{path}"})


@pytest.fixture
def graphs(made: World, front: FrontEnd) -> Iterator[Graphs]:
    compiled = Graphs(made.engine)
    front.at_request = compiled.compile
    yield compiled
    front.at_request = None


def test_on_the_cpu_each_sampling_setting_is_asked_until_no_graph_is_new(
    made: World, graphs: Graphs, front: FrontEnd
) -> None:
    new = blessed(made)
    assert new.coverage is not None
    assert (new.coverage.new, new.coverage.kernels) == ((1, 0), ())
    assert new.coverage.requests == 2 * 2 * len(workload.SETTINGS)
    assert any(file.path.endswith("/cxy0.py") for file in new.tree.files)
    asked = [json.loads(body) for body in front.asked]
    names = {name for settings in workload.SETTINGS for name in settings}
    assert names <= {name for body in asked for name in body}


def test_on_the_cpu_a_trial_that_compiles_a_graph_is_rejected_with_its_path(made: World, graphs: Graphs) -> None:
    graphs.forgetful = True
    with pytest.raises(Refused) as caught:
        blessed(made)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.expected) == ("NV912", "no output of a compiler in the scratch")
    assert refusal.found.endswith("/cxy1.py")
