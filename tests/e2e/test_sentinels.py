"""Sentinels in the served engine: its log says which patches are on, and which of them did something."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence

import pytest

from support.engine_world import MODEL, Served, World, Worlds

pytestmark = pytest.mark.engine


def ask(world: World, prompt: str) -> None:
    question = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{world.port}/v1/completions",
        json.dumps(question).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 4


def said(world: World, profile: str) -> Sequence[str]:
    """Return what the log of the engine says of sentinels, without the logger's prefix."""
    lines = (world.run_directory(profile) / "engine.log").read_text().splitlines()
    return [line[line.index("nvllm.sentinel ") :] for line in lines if "nvllm.sentinel " in line]


def test_all_that_the_profile_names_is_on_and_fires(served: Served) -> None:
    ask(served.world, "brown fox")
    lines = said(served.world, "eager")
    for name in ("page-zeroer", "mamba-block-ids"):
        assert f"nvllm.sentinel name={name} enabled=true" in lines
        assert lines.count(f"nvllm.sentinel name={name} first_fire") == 1
    assert not any("enabled=false" in line for line in lines)


def test_what_an_ablation_leaves_out_is_off_and_never_fires(worlds: Worlds) -> None:
    world = worlds.make()
    assert world.serve("--detach", profile="ablation").code == 0
    for prompt in ("hello world the quick", "brown fox"):
        ask(world, prompt)
    lines = said(world, "ablation")
    assert "nvllm.sentinel name=mamba-block-ids enabled=false" in lines
    assert "nvllm.sentinel name=mamba-block-ids first_fire" not in lines
    assert "nvllm.sentinel name=page-zeroer enabled=true" in lines
    assert lines.count("nvllm.sentinel name=page-zeroer first_fire") == 1
    assert {line for line in lines if "enabled=false" in line} == {"nvllm.sentinel name=mamba-block-ids enabled=false"}
