"""Requests to a blessed engine on the CPU: no sampling option ends it, and none compiles anything after the bless."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from docker import DockerClient

from nvllm.cache.blessings import Blessings
from nvllm.core import workload
from nvllm.core.canonical import Json
from nvllm.serve import staged_cache
from support.engine_world import IMAGE, World, Worlds
from torture import campaign, cases

pytestmark = pytest.mark.engine

GREEDY: dict[str, Json] = {"prompt": "hello world the quick", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
ORDINARY: tuple[dict[str, Json], ...] = (
    {"logprobs": 1},
    {"prompt_logprobs": 1},
    {"logprobs": 5, "prompt_logprobs": 3, "n": 2, "temperature": 0.7},
    {"structured_outputs": {"regex": "(yes|no)+"}, "logprobs": 1},
    {"structured_outputs": {"json": {"type": "array", "items": {"type": "string"}}}},
)
"""Requests that no bless has asked."""


def post(world: World, path: str, **fields: Json) -> httpx2.Response:
    question = {"model": "tiny-lfm2", **fields}
    return httpx2.post(f"http://127.0.0.1:{world.port}/v1/{path}", json=question, timeout=120, trust_env=False)


def answer(world: World) -> str:
    document: dict[str, Any] = post(world, "completions", **GREEDY).json()
    return str(document["choices"][0]["text"])


def test_no_sampling_option_ends_a_blessed_engine_or_makes_it_compile(
    worlds: Worlds, docker_client: DockerClient
) -> None:
    world = worlds.make({"    blessed: true": "    dev: true\n    blessed: true"})
    profile = world.profile("blessed")
    done = world.nvllm("bless", IMAGE, "--profile", profile, "--unsafe-trials", "1", "--json")
    assert done.code == 0, done
    (blessing,) = Blessings.of_project(world.project, world.places).all()
    assert blessing.manifest is not None
    assert blessing.manifest.coverage is not None
    assert blessing.manifest.coverage.new[-1] == 0
    assert sum(blessing.manifest.coverage.new) > 0  # with one probe alone, a request compiles later

    served = world.serve("--detach", profile="blessed")
    container = docker_client.containers.get(served.result["container"])
    greedy = answer(world)
    fields: dict[str, Json] = {"prompt": "one two three", "max_tokens": 4}
    wrong = []
    for settings in (*workload.SETTINGS, *ORDINARY):
        got = post(world, "completions", **{**fields, **settings})
        if got.status_code != 200:
            wrong.append((settings, got.status_code, got.text[:300]))
    chat: list[Json] = [{"role": "user", "content": "hello"}]
    got = post(world, "chat/completions", messages=chat, max_tokens=4, logprobs=True, top_logprobs=2)
    assert (wrong, got.status_code) == ([], 200)
    outcomes = [campaign.send(world.port, case, 120) for case in cases.known()]
    assert [campaign.shown(outcome.case) + outcome.wrong for outcome in outcomes if outcome.wrong] == []
    assert answer(world) == greedy
    container.reload()
    assert container.status == "running"
    listed = container.exec_run(["find", "/home/nvllm", "-type", "f"])
    assert isinstance(listed.output, bytes)
    blessed = {file.path.rpartition("/")[2] for file in blessing.manifest.tree.files}
    graphs = staged_cache.graphs(listed.output.decode().splitlines())
    assert {path.rpartition("/")[2] for path in graphs} <= blessed
