"""Supervising a blessed engine: what it loads, what it must say, and what is looked at while it serves.

The container engine is the one of `bless_world`, which is made up; the staged copy is a real one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cache import cachetree, staging
from nvllm.cache.cachetree import TreeFile
from nvllm.cache.staging import Staged
from nvllm.cache.store import TreeStore
from nvllm.core.plan import CACHE
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.host.locks import HeldLocks
from nvllm.serve import planner, staged_cache
from nvllm.serve import supervisor as serve
from nvllm.serve.rundir import InstanceState
from nvllm.serve.staged_cache import MountedCache
from nvllm.serve.supervisor import Supervisor
from nvllm.serve.timeline import Timeline
from support import blessings_world
from support.bless_world import READY, World, world
from support.plansamples import FrontEnd


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd) -> Iterator[World]:
    with world(tmp_path, front) as found:
        yield found


@pytest.fixture
def cache(made: World, tmp_path: Path) -> Iterator[MountedCache]:
    tree = made.work.store.adopt(blessings_world.cache(tmp_path / "fresh"), blessings_world.CURE)
    plan = planner.loading(made.found.plan, tree)
    new = blessings_world.bless(tree, made.found.plan, kv_tokens=52428)
    with staged_cache.staged(replace(made.found, plan=plan, manifest=new), made.places) as ready:
        assert ready is not None
        yield ready


def supervisor(made: World, cache: MountedCache) -> Supervisor:
    taken: HeldLocks = made.work.held_locks
    return Supervisor(made.found, made.places, taken, Silent(), cache)


def test_a_blessed_start(made: World, cache: MountedCache) -> None:
    found = supervisor(made, cache)
    found.start()
    (plan,) = made.engine.plans
    assert plan == cache.plan
    assert [mount.source for mount in plan.mounts if mount.target == CACHE] == [str(cache.staged.path)]
    state = found.run.read_state()
    assert state is not None
    assert (state.stage, state.blessed) == ("ready", "demo-eager")
    assert b'"cache":{' in (found.run.mounted / "launch.json").read_bytes()
    found.end("stopped", "a test")


def test_a_start_that_loaded_nothing_fails_and_is_ended(made: World, cache: MountedCache) -> None:
    made.engine.warm = READY
    found = supervisor(made, cache)
    with pytest.raises(Refused) as caught:
        found.start()
    assert [one.code for one in caught.value.refusals] == ["NV705"]
    assert made.engine.ended == ["killed", "removed"]
    state = found.run.read_state()
    assert state is not None
    assert (state.stage, state.reason) == ("failed", "NV705 not the blessed start")


def test_a_copy_that_was_touched_during_the_start_is_never_ready(made: World, cache: MountedCache) -> None:
    """The recheck of every minute came too late for it: the engine had answered until then."""
    touched = cache.staged.path / "modelinfos/Lfm2.json"
    touched.chmod(0o644)
    with pytest.raises(Refused) as caught:
        supervisor(made, cache).start()
    assert {(one.code, one.where) for one in caught.value.refusals} == {("NV907", str(touched))}
    assert made.engine.ended == ["killed", "removed"]


def test_a_refusal_of_the_gate_is_told_although_the_copy_cannot_be_removed(made: World, tmp_path: Path) -> None:
    """F8: what ended the engine was hidden by the error of removing what the attacker had put in the place."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o755)  # whatever the umask
    caught_by_gate = Refusal("NV701", "container demo", "the plan", "another file", "nvllm bless demo")
    tree = made.work.store.adopt(blessings_world.cache(tmp_path / "fresh"), blessings_world.CURE)
    new = blessings_world.bless(tree, made.found.plan, kv_tokens=52428)
    blessed = replace(made.found, plan=planner.loading(made.found.plan, tree), manifest=new)
    copies: list[Path] = []

    def attacked() -> None:
        with staged_cache.staged(blessed, made.places) as ready:
            assert ready is not None
            copies.append(ready.staged.path.parent)
            copies[0].rename(tmp_path / "taken away")
            copies[0].symlink_to(elsewhere)
            raise Refused([caught_by_gate])

    with pytest.raises(Refused) as caught:
        attacked()
    assert caught.value.refusals == (caught_by_gate,)
    assert not copies[0].is_symlink()
    assert elsewhere.stat().st_mode & 0o777 == 0o755


LEFT_OVER = """
import os
import sys
from pathlib import Path
from nvllm.cache import staging
from nvllm.core.refusal import Refusal, Refused
from support.blessings_world import become_another_user

os.umask(0o022)  # the other user may look into what is closed, and not change it
copy = Path(sys.argv[1], "copy")
(copy / "closed" / "below").mkdir(parents=True)
if os.geteuid() == 0:
    os.chown(copy, 4242, 4242)
become_another_user()
if os.access(copy / "closed", os.W_OK):
    copy.joinpath("closed").chmod(0o500)
    os.chmod = lambda *_: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted"))
try:
    with staging.discarding(copy):
        raise Refused([Refusal("NV701", "container demo", "the plan", "another file", "nvllm bless demo")])
except Refused as refused:
    print(*((one.code, one.found, one.cure) for one in refused.refusals))
"""


def test_what_is_left_over_is_told_beside_the_refusal() -> None:
    """Root's directory in the copy cannot be removed. Who is not root has none, so `chmod` is made to fail for it."""
    with blessings_world.as_another_user() as (directory, run):
        told = run(LEFT_OVER, str(directory))
        leftover = "a copy that is left over: Operation not permitted"
        expected = (
            f"('NV701', 'another file', 'nvllm bless demo') ('NV911', '{leftover}', 'sudo rm -r {directory}/copy')"
        )
        assert told == f"{expected}\n"


def test_a_start_that_is_slow_is_told_and_served(
    made: World, cache: MountedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials took 20.5 s until the front end was up; a busy host is no reason to refuse."""
    made.engine.late = 60.0
    found = supervisor(made, cache)
    noted: list[str] = []
    monkeypatch.setattr(found.progress, "note", noted.append)
    found.start()
    (slow,) = found.slow
    assert (slow.phase, slow.blessed) == ("server", 20.5)
    assert [note for note in noted if note.startswith("SLOW server ")] != []
    said = [json.loads(line) for line in (found.run.path / "evidence.jsonl").read_text().splitlines()]
    assert [one["phase"] for one in said if one["event"] == "slow"] == ["server"]
    found.end("stopped", "a test")


def test_a_copy_that_is_touched_while_it_serves_ends_the_engine(
    made: World, cache: MountedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "RECHECK", 0.0)
    found = supervisor(made, cache)
    found.start()
    (cache.staged.path / "modelinfos/Lfm2.json").chmod(0o644)
    with pytest.raises(Refused) as caught:
        found.watch()
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV907", "changed")]
    assert made.engine.ended == ["killed", "removed"]


def test_a_copy_that_nobody_touched_is_well(made: World, cache: MountedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "RECHECK", 0.0)
    monkeypatch.setattr(serve, "PAUSE", 0.01)
    found = supervisor(made, cache)
    seen: list[list[Refusal]] = []
    look = staging.recheck

    def recheck(staged: Staged, cure: str) -> list[Refusal]:
        seen.append(look(staged, cure))
        found.run.ask_to_stop()
        return seen[-1]

    monkeypatch.setattr(staging, "recheck", recheck)
    found.start()
    found.watch()
    assert seen == [[]]
    assert made.engine.ended == ["stopped"]


def test_a_start_that_missed_a_kernel_is_not_the_blessed_one(made: World, cache: MountedCache) -> None:
    missed = "nvllm.kernels miss key=KEY name=zero.json"
    said = replace(supervisor(made, cache).timeline, loaded=[f"{CACHE}/{cache.manifest.tree.files[0].path}"])
    said.kv_tokens = 52428
    assert cache.problems(said, [], 1.0, "log") == []
    said.feed(1.0, missed)
    (found,) = cache.problems(said, [], 1.0, "log")
    assert (found.code, found.expected, found.found) == ("NV705", "every kernel in a cache", "key=KEY name=zero.json")


def test_code_that_is_written_beside_the_blessed_files_was_compiled(tmp_path: Path) -> None:
    root = blessings_world.cache(tmp_path / "fresh")
    tree = TreeStore(tmp_path / "trees").adopt(root, blessings_world.CURE)
    (inductor,) = tree.seeds
    blessed = [f"{CACHE}/{one.path}" for one in tree.files]
    timeline = Timeline(0.0, loaded=[f"{CACHE}/{blessings_world.AOT}/rank_0_0/model"])
    tuned = f"{CACHE}/{inductor}/xo/5274.best_config"
    assert staged_cache.reuse(timeline, [*blessed, tuned], tree) == []
    (problem,) = staged_cache.reuse(timeline, [*blessed, f"{CACHE}/{inductor}/xo/new.py"], tree)
    assert problem == ("no output of a compiler in the scratch", f"{CACHE}/{inductor}/xo/new.py")


def test_a_graph_that_a_request_needs_and_the_cache_lacks_is_reported_and_ends_nothing(
    made: World, cache: MountedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "RECHECK", 0.0)
    monkeypatch.setattr(serve, "PAUSE", 0.01)
    found = supervisor(made, cache)
    found.start()
    place = f"{CACHE}/{blessings_world.AOT}/inductor_cache"
    blessed = [f"{CACHE}/{file.path}" for file in cache.manifest.tree.files]
    made.engine.scratch = (*blessed, f"{place}/xy/cxyz.py", f"{place}/xy/cxyz.so")
    served: list[InstanceState | None] = []

    def look() -> None:
        if found.reports.read(cache.plan.serve_hash):
            served.append(found.run.read_state())
            found.run.ask_to_stop()

    made.engine.later = look
    found.watch()
    (state, *_) = served
    assert state is not None
    assert [(kernel.key, kernel.arguments) for kernel in state.kernels] == [("cxyz", f"{place}/xy/cxyz.py")]
    # A bless that compiles it settles the report.
    files = (*cache.manifest.tree.files, TreeFile("a/inductor_cache/xy/cxyz.py", 1, "0444", "0" * 64))
    tree = cachetree.of(files, cache.manifest.tree.directories)
    assert found.reports.settle(cache.plan.serve_hash, tree) == ()


def test_a_container_that_lists_no_files_is_still_served(
    made: World, cache: MountedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "RECHECK", 0.0)
    monkeypatch.setattr(serve, "PAUSE", 0.01)
    found = supervisor(made, cache)
    found.start()
    answers = iter([None, refuse("NV510", "docker engine", "an answer", "the container is paused", "wait")])

    def listed(*_: str) -> list[str] | None:
        try:
            answer = next(answers)
        except StopIteration:
            found.run.ask_to_stop()
            return []
        if answer is not None:
            raise answer
        return None

    monkeypatch.setattr(made.engine, "scratch_files", listed)
    found.watch()
    assert next(answers, "all were given") == "all were given"


def test_a_kernel_that_a_request_needs_and_the_cache_lacks_is_reported(made: World, cache: MountedCache) -> None:
    found = supervisor(made, cache)
    found.start()
    made.engine.says("nvllm.kernels miss key=ABC name=conv.json")
    made.engine.says('nvllm.kernels compiled {"arguments": "n: 1", "key": "ABC", "name": "conv"}')
    served: list[InstanceState | None] = []

    def look() -> None:
        if found.reports.read(cache.plan.serve_hash):
            served.append(found.run.read_state())
            found.run.ask_to_stop()

    made.engine.later = look
    found.watch()
    state = served[0]
    assert state is not None
    (kernel,) = state.kernels
    assert (state.stage, kernel.key, kernel.name, kernel.arguments) == ("ready", "ABC", "conv", "n: 1")
    assert found.reports.read(cache.plan.serve_hash) == (kernel,)
    said = [json.loads(line) for line in (found.run.path / "evidence.jsonl").read_text().splitlines()]
    assert {"key": "ABC", "name": "conv", "arguments": "n: 1"}.items() <= said[-2].items()
    assert said[-2]["event"] == "kernel missing"
