"""One artifact for all arms on the real engine: compiled once, loaded by every leg, and nothing else is compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from nvllm.bless import compiled
from nvllm.evidence.directory import EvidenceDirectory
from support import question_samples
from support.engine_world import IMAGE, Done, World, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]


def ablate(world: World, output: Path, *more: str) -> Done:
    data = question_samples.write(world.directory / "questions.jsonl", 8)
    probe = ("--probe", "gsm8k", "--data", str(data), "--length", "24", "--runs", "1", "--output", str(output))
    arms = ("--profile", world.profile("compiled"), "--sentinels", "mamba-block-ids", "--arms", "none,all")
    return world.nvllm("ablate", IMAGE, *arms, *probe, *more, "--json")


def verdict(output: Path, arm: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((output / "arms" / arm / "run-1" / "verdict.json").read_text())
    return document


def test_two_arms_load_what_one_engine_compiled(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    output = world.directory / "evidence"
    compared = ablate(world, output).result
    assert {one["outcome"] for one in compared["arms"]} == {"passed"}
    legs = [verdict(output, arm) for arm in ("none", "mamba-block-ids")]
    (key,) = {one["compile_key"] for one in legs}
    (tree,) = {one["tree"] for one in legs}
    record = compiled.record(EvidenceDirectory(output).artifact(key), "")
    assert record is not None
    assert record.tree.hash == tree
    logs = [(output / "arms" / one["arm"] / "run-1" / "engine.log").read_text() for one in legs]
    assert [("saved AOT compiled" in one, "Directly load AOT" in one) for one in logs] == [(False, True)] * 2
    assert world.containers(docker_client) == []


def test_a_load_compiles_nothing_and_a_profile_that_compiles_nothing_is_named(worlds: Worlds) -> None:
    world = worlds.make()
    output, first, other = world.directory / "evidence", world.profile("compiled"), world.profile("ablation")
    load = ("--requests", "4", "--concurrency", "2", "--prompt-len", "32", "--output-len", "16", "--runs", "1")
    done = world.nvllm("bench", IMAGE, "--profile", first, "--vs", other, *load, "--output", str(output), "--json")
    compared = done.result
    assert {one["outcome"] for one in compared["arms"]} == {"passed"}
    assert [one["artifacts"] for one in compared["findings"]] == [
        f"{first} loaded what was compiled before, {other} did not"
    ]
    assert not verdict(output, other).keys() & {"tree", "compile_key"}  # what is empty is left out
    assert [len(one["trees"]) for one in compared["artifacts"]] == [1, 0]


def test_a_sweep_of_one_profile_loads_one_artifact_in_both_of_its_arms(worlds: Worlds) -> None:
    world = worlds.make()
    output, profile = world.directory / "evidence", world.profile("compiled")
    data = question_samples.write(world.directory / "questions.jsonl", 4)
    load = ("--requests", "4", "--concurrency", "2", "--prompt-len", "32", "--output-len", "16", "--runs", "1")
    asked = ("--probe", "gsm8k", "--data", str(data), "--length", "24", "--output", str(output), "--json")
    compared = world.nvllm("sweep", IMAGE, "--profiles", profile, *load, *asked).result
    assert {one["outcome"] for one in compared["arms"]} == {"passed"}
    (tree,) = {verdict(output, arm)["tree"] for arm in (profile, f"{profile}-2")}
    assert compared["findings"][0]["artifacts"] == f"all loaded one artifact, tree {tree[:12]}"


def test_each_of_two_compiles_of_one_key_is_loaded_by_its_starts(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    output, profile = world.directory / "evidence", world.profile("compiled")
    data = question_samples.write(world.directory / "questions.jsonl", 4)
    probe = ("--probe", "gsm8k", "--data", str(data), "--length", "16", "--runs", "2", "--output", str(output))
    compared = world.nvllm("ablate", IMAGE, "--profile", profile, "--artifacts", "2", *probe, "--json").result
    assert {one["name"]: one["outcome"] for one in compared["arms"]} == {"artifact-1": "passed", "artifact-2": "passed"}
    for number, result in enumerate(compared["compiles"], 1):
        leg = verdict(output, f"artifact-{number}")
        assert result["kept"] == f"artifacts/{leg['compile_key']}-{number}/{leg['tree']}"
        assert (output / result["kept"]).is_dir()
        assert (result["right"], result["bad"]) == ([0, 0], False)  # the weights are random
    assert {one["finding"] for one in compared["findings"]} == {"unknown"}  # four questions are few
    assert world.containers(docker_client) == []


def test_of_two_compiles_one_that_passes_is_blessed(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    profile = ("--profile", world.profile("blessed"), "--artifacts", "2", "--unsafe-trials", "1", "--rebless")
    blessed = world.nvllm("bless", IMAGE, *profile, "--json").result
    assert (blessed["compiles"], blessed["rejected"], blessed["boots"]) == (2, [], 1)
    assert world.containers(docker_client) == []


@pytest.mark.parametrize("name", ["compiled", "blessed"])
def test_a_trace_is_of_the_tree_that_its_arm_loads(worlds: Worlds, name: str) -> None:
    blessed = "    blessed: true # served"
    world = worlds.make({blessed: f"    dev: true\n{blessed}"})  # so that one trial is enough to be served
    output, profile = world.directory / "evidence", world.profile(name)
    if name == "blessed":
        assert world.nvllm("bless", IMAGE, "--profile", profile, "--unsafe-trials", "1", "--json").result["boots"] == 1
    load = ("--requests", "4", "--concurrency", "2", "--prompt-len", "32", "--output-len", "16", "--runs", "1")
    done = world.nvllm("bench", IMAGE, "--profile", profile, *load, "--trace", "--output", str(output), "--json")
    (table,) = done.result["kernels"]
    assert table["tree"] == verdict(output, profile)["tree"]
    assert bool([*output.glob("artifacts/*")]) == (name == "compiled")  # the other one is in the tree store
    log = (output / "arms" / profile / "trace" / "engine.log").read_text()
    assert ("saved AOT compiled" in log, "Directly load AOT" in log) == (False, True)
