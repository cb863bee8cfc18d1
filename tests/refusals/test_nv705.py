"""NV705, not the blessed start: an engine that is ready, but not with the blessed code, or smaller."""

from __future__ import annotations

from pathlib import Path

import pytest

import blessings_world
from bless_world import LOADED, READY, SAVED
from nvllm import planner
from nvllm.loaded import Loaded
from nvllm.plan import CACHE
from nvllm.refusal import Refusal
from nvllm.timeline import Timeline
from plansamples import PLAN


def problems(tmp_path: Path, *lines: str, scratch: tuple[str, ...] = ()) -> list[Refusal]:
    """Return what is refused of a ready engine that said LINES and wrote SCRATCH."""
    store, tree = blessings_world.stored(tmp_path)
    copy = store.stage(tree, tmp_path / "staged", blessings_world.CURE)
    new = blessings_world.bless(tree, kv_tokens=52428)
    plan = planner.mounting(planner.loading(PLAN, tree), copy.path)
    said = Timeline(0.0)
    for line in lines:
        said.feed(1.0, line)
    return Loaded(plan, new, copy).problems(said, list(scratch), "engine.log")


@pytest.mark.parametrize(("seconds", "refused"), [(3.0, False), (23.0, False), (25.0, True)])
def test_a_load_that_took_as_long_as_the_compile(tmp_path: Path, seconds: float, refused: bool) -> None:
    """The log has every sign of a load, and nothing was left behind: the time alone tells."""
    store, tree = blessings_world.stored(tmp_path)
    copy = store.stage(tree, tmp_path / "staged", blessings_world.CURE)
    new = blessings_world.bless(tree, kv_tokens=52428)  # its bootstrap compiled for 30.5 s
    said = Timeline(0.0)
    for when, line in [(seconds, LOADED), *((seconds + 20.0, line) for line in READY)]:
        said.feed(when, line)
    found = Loaded(planner.mounting(planner.loading(PLAN, tree), copy.path), new, copy).problems(said, [], "engine.log")
    assert [one.code for one in found] == (["NV705"] if refused else [])
    if refused:
        assert found[0].expected == "blessed code that loads within 0.0 s, as in the trials"
        assert found[0].found == "25.0 s, in a start that was not slow otherwise; compiling took 30.5 s"


def test_the_blessed_start(tmp_path: Path) -> None:
    assert problems(tmp_path, LOADED, *READY) == []


@pytest.mark.parametrize(
    ("lines", "expected", "found"),
    [
        (READY, "compiled code that was loaded", "no such line in the log"),
        ((LOADED, SAVED, *READY), "nothing saved", SAVED),
        ((LOADED.replace(CACHE, "/tmp"), *READY), "compiled code of the blessed cache", "/tmp/"),
        ((LOADED, READY[0].replace("52,428", "400")), "52428 KV tokens", "400"),
        ((LOADED,), "52428 KV tokens", "None"),
    ],
    ids=["nothing loaded", "saved again", "loaded from elsewhere", "smaller", "of unknown size"],
)
def test_another_start(tmp_path: Path, lines: tuple[str, ...], expected: str, found: str) -> None:
    (refusal,) = problems(tmp_path, *lines)
    assert (refusal.code, refusal.where, refusal.expected) == ("NV705", f"container {PLAN.instance}", expected)
    assert refusal.found.startswith(found)
    assert refusal.cure == "read engine.log; nvllm bless demo --profile eager --rebless"


@pytest.mark.parametrize("name", ["c45.so", "c45.cpp", "kernel.cubin", "c45.py"])
def test_code_that_was_compiled_without_a_word(tmp_path: Path, name: str) -> None:
    path = f"/tmp/torchinductor_nvllm/c4/{name}"
    (refusal,) = problems(tmp_path, LOADED, *READY, scratch=("/tmp/vllm_dist_1", path))
    assert (refusal.code, refusal.expected) == ("NV705", "nothing compiled into the scratch")
    assert refusal.found == path
