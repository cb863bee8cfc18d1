"""Blessing with an engine that is made up: what is accepted, what is rejected, and what is left of either."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from nvllm.bless import blessing, preflight, replay
from nvllm.bless.blessing import Bless
from nvllm.bless.preflight import BlessRequest
from nvllm.cache import manifest
from nvllm.cache.blessings import BlessingQuery
from nvllm.cache.manifest import Coverage, Manifest
from nvllm.core import canonical
from nvllm.core.plan import CACHE, FORCE_LOAD, Mount
from nvllm.core.progress import Silent, Table
from nvllm.core.refusal import Refused
from nvllm.serve import health, servehash
from support import blessings_world
from support.bless_world import READY, TOKENS, World, answer, everything_below
from support.plansamples import FrontEnd
from support.rows import each_row


def test_a_bless_from_the_compile_to_the_lookup(made: World) -> None:
    request = BlessRequest(boots=5)
    proof = made.work.run(request)
    tree, trials = proof.tree, proof.trials
    new = blessing.new_manifest(made.found, made.held, proof, request, time.time())
    place = blessing.promote(made.held, new, None, None)
    assert manifest.read(place, str(place)) == new
    assert [trial.number for trial in trials] == [1, 2, 3, 4, 5]
    assert len({trial.boot for trial in trials}) == 5
    assert {(trial.prompts, trial.replays, trial.kv_tokens) for trial in trials} == {(2, 12, 52428)}
    plan = made.found.plan
    query = BlessingQuery(plan.image, plan.profile, plan.serve_hash, servehash.factors(plan), False, time.time())
    assert made.held.lookup(query) == new
    assert made.work.store.list() == [tree.hash]


def test_what_the_bootstrap_compiled_is_in_the_manifest(made: World) -> None:
    graph = "INFO 11-21 07:57:12 [backends.py:393] Compiling a graph for compile range (1, 256) takes 3.21 s"
    made.engine.cold = (graph, "nvllm.kernels miss key=KEY name=zero.json", *made.engine.cold)
    request = BlessRequest(boots=5)
    new = blessing.new_manifest(made.found, made.held, made.work.run(request), request, time.time())
    assert (new.cold.compiles, new.cold.saved, new.cold.kernels) == (1, 1, 1)
    assert {trial.compiles for trial in new.trials} == {0}


def test_the_bootstrap_writes_and_the_trials_cannot(made: World) -> None:
    made.work.run(BlessRequest(boots=2, unsafe=True))
    (bench,) = made.engine.benches
    assert FORCE_LOAD not in bench.plan.environment
    assert bench.plan.cache is None
    assert not any(mount.target == CACHE for mount in bench.plan.mounts)
    for plan in made.engine.plans:
        assert plan.environment[FORCE_LOAD] == "1"
        assert plan.cache is not None
        (mounted,) = [mount for mount in plan.mounts if mount.target == CACHE]
        assert isinstance(mounted, Mount)
        assert mounted.source != bench.directory
        assert f"{CACHE}/{blessings_world.AOT}/inductor_cache" in {one.target for one in plan.scratch}
        assert servehash.serve_hash(plan) == servehash.serve_hash(bench.plan) == made.found.plan.serve_hash


def test_every_container_ends_and_no_copy_stays(made: World) -> None:
    made.work.run(BlessRequest(boots=2, unsafe=True))
    assert made.engine.ended.count("stopped") == 3
    assert everything_below(made.places.staged / made.found.plan.instance) == []
    names = sorted(path.name for path in made.work.evidence.iterdir())
    assert names == ["bootstrap", "trial-1", "trial-2"]
    for name in names:
        assert (made.work.evidence / name / "engine.log").is_file()


def test_an_interrupt_leaves_nothing_but_evidence(made: World) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    made.engine.in_trial = interrupted
    with pytest.raises(KeyboardInterrupt):
        made.work.run(BlessRequest(boots=5))
    assert everything_below(made.places.staged / made.found.plan.instance) == []
    assert (made.work.evidence / "trial-1").is_dir()
    assert made.held.all() == ()


def test_a_bless_that_is_rejected_leaves_the_logs_of_the_manifest_in_force(made: World) -> None:
    request = BlessRequest(boots=5)
    new = blessing.new_manifest(made.found, made.held, made.work.run(request), request, time.time())
    blessing.promote(made.held, new, None, None)
    made.engine.warm = READY
    again = Bless(made.found, made.places, made.work.held_locks, Silent(), made.pin)
    with pytest.raises(Refused):
        again.run(BlessRequest(boots=5))
    (in_force,) = made.held.all()
    assert in_force.manifest is not None
    logs = [made.work.evidence / f"trial-{trial.number}/engine.log" for trial in in_force.manifest.trials]
    assert [canonical.sha256_file(log) for log in logs] == [trial.log for trial in in_force.manifest.trials]
    assert (again.evidence / "trial-1/engine.log").is_file()
    assert len(made.work.store.list()) == 1


def claimed(made: World, **changes: Any) -> Manifest:
    """Return what another host says of a cache that it sent, which is in the store here, with CHANGES."""
    tree = made.work.store.adopt(blessings_world.cache(made.places.cache / "sent"), "cure")
    return blessings_world.bless(tree, made.found.plan, **changes)


def test_a_candidate_is_tried_and_nothing_is_compiled(made: World) -> None:
    candidate = claimed(made, version=10**9, unsafe=False)
    request = BlessRequest(boots=5, candidate=candidate)
    result = made.work.prove(5, candidate)
    assert made.engine.benches == []
    assert len({trial.boot for trial in result.trials}) == len(made.engine.plans) == 5
    new = blessing.new_manifest(made.found, made.held, result, request, time.time())
    assert (new.version, new.tree, new.cold) == (1, candidate.tree, candidate.cold)
    assert {one.log for one in new.trials}.isdisjoint(one.log for one in candidate.trials)
    blessing.promote(made.held, new, None, None)


def test_a_candidate_whose_trials_differ_is_rejected(made: World, front: FrontEnd) -> None:
    def otherwise() -> None:
        front.body = answer([len(made.engine.plans), *TOKENS[1:]])

    made.engine.in_trial = otherwise
    with pytest.raises(Refused) as caught:
        made.work.prove(5, claimed(made))
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.expected[:26]) == ("NV912", "the answer of trial 1, 1 1")
    assert len(made.engine.plans) == 2


def test_a_candidate_that_compiles_or_has_changed_is_rejected(made: World) -> None:
    candidate = claimed(made)
    warm, made.engine.warm = made.engine.warm, READY  # it loads nothing of the cache
    codes = []
    for spoil in (False, True):
        if spoil:
            made.engine.warm = warm
            path = made.work.store.path(candidate.tree_hash) / candidate.tree.files[0].path
            blessings_world.writable(path).write_bytes(b"other bytes")
        with pytest.raises(Refused) as caught:
            made.work.prove(5, candidate)
        codes.append({one.code for one in caught.value.refusals})
    assert codes == [{"NV912"}, {"NV907"}]


def test_a_candidate_claims_no_more_rounds_than_a_bless_asks(made: World) -> None:
    candidate = claimed(made, coverage=Coverage((0,) * 201, 1, ()))
    with pytest.raises(Refused) as caught:
        preflight.preflight(made.found, made.held, BlessRequest(5, candidate=candidate), None, 0.0)
    assert [(one.code, one.where) for one in caught.value.refusals] == [("NV108", "--candidate")]


class Shown(Silent):
    """A progress whose one table is kept: each state of each row, in order."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []

    @contextmanager
    def table(self, columns: Sequence[str]) -> Iterator[Table]:
        assert columns[:2] == ("boot", "state")
        yield self

    def row(self, name: str, *cells: str) -> None:
        self.rows.append((name, *cells))


def test_every_boot_has_its_row(made: World) -> None:
    shown = made.work.progress = Shown()
    made.work.run(BlessRequest(boots=2, unsafe=True))
    assert list(dict.fromkeys(row[0] for row in shown.rows)) == ["bootstrap", "trial 1 of 2", "trial 2 of 2"]
    states = [row[1] for row in shown.rows if row[0] == "trial 1 of 2"]
    assert states[0] == "starting"
    assert any("server" in state for state in states), "how far its start is"
    last = {row[0]: row[1:] for row in shown.rows}
    assert last["bootstrap"][0].startswith("compiled: 4 files, ")
    for name in ("trial 1 of 2", "trial 2 of 2"):
        state, took, *figures = last[name]
        assert (state, took[-2:], figures) == ("good", " s", ["12", "52428", "1024 MiB", "0"])


def test_the_row_of_a_trial_that_fails_says_so(made: World) -> None:
    shown = made.work.progress = Shown()
    made.engine.warm = READY
    with pytest.raises(Refused):
        made.work.run(BlessRequest(boots=5))
    assert shown.rows[-1] == ("trial 1 of 5", "rejected: NV912")


# Replays


def test_replays_that_agree() -> None:
    asked: list[str] = []

    def ask(prompt: str) -> tuple[int, ...]:
        asked.append(prompt)
        return tuple(prompt.encode())

    found = replay.replays(ask, "hello")
    assert found.coherent
    assert found.independent
    assert found.count == len(asked) == 12
    assert asked.count("hello") == replay.REPEATS


@each_row("prompt", ["hello", replay.OTHER])
def test_another_prompt_that_leaves_something_behind(prompt: str) -> None:
    last = ""

    def ask(asked: str) -> tuple[int, ...]:
        nonlocal last
        leaked = asked == prompt and last not in {"", prompt}
        last = asked
        return (1, 2, 4) if leaked else (1, 2, 3)

    found = replay.replays(ask, prompt)
    assert found.coherent
    assert not found.independent


def test_a_repeat_that_answers_otherwise() -> None:
    answers = iter(range(100))
    found = replay.replays(lambda _: (next(answers),), "hello")
    assert not found.coherent
    assert not found.independent


def test_an_answer_is_its_tokens(made: World, front: FrontEnd) -> None:
    assert replay.greedy(made.found.plan, "hello", 5) == tuple(TOKENS)
    assert b'"temperature":0' in front.asked[-1].replace(b" ", b"")


@pytest.mark.parametrize("body", [answer(TOKENS[:3]), b"{}", b"no JSON", b'{"choices": [{"token_ids": null}]}'])
def test_what_is_no_answer(made: World, front: FrontEnd, body: bytes) -> None:
    front.body = body
    with pytest.raises(health.NotReady):
        replay.greedy(made.found.plan, "hello", 5)
