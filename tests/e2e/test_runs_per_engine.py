"""Several runs in one engine, on the real one. A collapse is planted in `test_planted_faults.py`."""

from __future__ import annotations

import json

import pytest
from docker import DockerClient

from support import question_samples
from support.engine_world import IMAGE, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]


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
