"""Several runs in one engine, on the real one: questions, and a probe whose fourth run collapses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docker import DockerClient

from support import question_samples
from support.engine_world import IMAGE, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

PROBE = """#!/bin/sh
# In its fourth run the engine is asked nothing, as if it answered wrongly.
[ "$NVLLM_RUN" = 4 ] && right=false || right=true
[ "$NVLLM_RUN" = 4 ] || curl --silent --fail --output /dev/null "$NVLLM_ADDRESS/v1/models" || exit 125
for id in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "{\\"id\\": $id, \\"correct\\": $right}" >> "$NVLLM_PERQ"; done
"""


def test_questions_are_asked_again_in_the_same_container(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    output, data = world.directory / "evidence", question_samples.write(world.directory / "questions.jsonl", 6)
    asked = ("--data", str(data), "--length", "24", "--runs-per-engine", "3", "--engines", "1")
    profile = ("gsm8k", "--image", IMAGE, "--profile", world.profile())
    compared = world.nvllm("eval", *profile, *asked, "--output", str(output), "--json").result
    (engine,) = compared["engines"]
    assert [(one["turn"], one["outcome"], one["asked"]) for one in engine["runs"]] == [
        (turn, "passed", 6) for turn in (1, 2, 3)
    ]
    assert all(one["kv_usage"] == 0 and one["peak_memory"] > 1 << 28 for one in engine["runs"])
    verdicts = [json.loads(path.read_text()) for path in output.glob("arms/*/run-*/verdict.json")]
    assert (len(verdicts), len({one["container"] for one in verdicts})) == (3, 1)
    assert world.containers(docker_client) == []


def test_a_collapse_in_the_fourth_run_is_named(worlds: Worlds, tmp_path: Path) -> None:
    world, probe = worlds.make(), tmp_path / "probe.sh"
    probe.write_text(PROBE)
    probe.chmod(0o755)
    output = world.directory / "evidence"
    asked = ("--probe", str(probe), "--floor", "0%", "--runs-per-engine", "5", "--output", str(output), "--json")
    compared = world.nvllm("eval", "--image", IMAGE, "--profile", world.profile(), *asked).result
    named = {one["factor"]: one for one in compared["findings"]}["engine 1, runs 2 to 5 / run 1"]
    assert named["finding"] == "loss"
    assert named["text"].startswith("12, 12, 12, 0, 12 of 12 right, run after run; engine 1, run 4 / run 1: fewer")
