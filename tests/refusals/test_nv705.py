"""NV705, not the blessed start: an engine that is ready, but not with the blessed code, or smaller."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.plan import CACHE
from nvllm.core.refusal import Refusal
from nvllm.serve import planner
from nvllm.serve.staged_cache import MountedCache
from nvllm.serve.timeline import Timeline
from support import blessings_world
from support.bless_world import LOADED, READY, SAVED
from support.plansamples import PLAN


def problems(tmp_path: Path, *lines: str, scratch: tuple[str, ...] = (), processor: float = 25.0) -> list[Refusal]:
    """Return what is refused of a ready engine that said LINES, wrote SCRATCH and used so much PROCESSOR time."""
    store, tree = blessings_world.stored(tmp_path)
    copy = store.stage(tree, tmp_path / "staged", blessings_world.CURE)
    new = blessings_world.bless(tree, kv_tokens=52428)
    plan = planner.mounting(planner.loading(PLAN, tree), copy.path)
    said = Timeline(0.0)
    for line in lines:
        said.feed(1.0, line)
    return MountedCache(plan, new, copy).problems(said, list(scratch), processor, "engine.log")


@pytest.mark.parametrize(("processor", "refused"), [(25.0, False), (63.9, False), (64.0, True)])
def test_a_start_that_used_what_compiling_takes(tmp_path: Path, processor: float, refused: bool) -> None:
    """The log has every sign of a load, and nothing was left behind: what it used tells."""
    found = problems(tmp_path, LOADED, *READY, processor=processor)  # of a bless that used 80 s to compile, 25 to load
    assert [one.code for one in found] == (["NV705"] if refused else [])
    if refused:
        assert found[0].expected == "a start that loads the cache: at most 25.0 processor seconds, as in the trials"
        assert found[0].found == "64.0 processor seconds; the bootstrap, which compiled, took 80.0"


def test_the_blessed_start(tmp_path: Path) -> None:
    assert problems(tmp_path, LOADED, *READY) == []


@pytest.mark.parametrize(
    ("lines", "expected", "found"),
    [
        (READY, "a line in the log that compiled code was loaded", "none"),
        ((LOADED, SAVED, *READY), "nothing saved", SAVED),
        ((LOADED.replace(CACHE, "/tmp"), *READY), "only compiled code of the blessed cache", "/tmp/"),
        ((LOADED, READY[0].replace("52,428", "400")), "52428 KV tokens", "400"),
        ((LOADED,), "52428 KV tokens", "None"),
    ],
    ids=["nothing loaded", "saved again", "loaded from elsewhere", "smaller", "of unknown size"],
)
def test_another_start(tmp_path: Path, lines: tuple[str, ...], expected: str, found: str) -> None:
    (refusal,) = problems(tmp_path, *lines)
    assert (refusal.code, refusal.where, refusal.expected) == ("NV705", f"container {PLAN.instance}", expected)
    assert refusal.found.startswith(found)
    assert refusal.cure == "less engine.log; nvllm bless demo --profile eager --rebless"


@pytest.mark.parametrize("name", ["c45.so", "c45.cpp", "kernel.cubin", "c45.py"])
def test_code_that_was_compiled_without_a_word(tmp_path: Path, name: str) -> None:
    path = f"/tmp/torchinductor_nvllm/c4/{name}"
    (refusal,) = problems(tmp_path, LOADED, *READY, scratch=("/tmp/vllm_dist_1", path))
    assert (refusal.code, refusal.expected) == ("NV705", "no output of a compiler in the scratch")
    assert refusal.found == path
