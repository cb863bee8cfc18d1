"""Faults that are planted into the real engine, or beside it, and the command that finds and names each.

A dead sentinel and a patch that is always on are planted in `test_ablate.py`, a step that takes 5 % longer in
`test_bench.py`; here a compile that came out wrong, answers that collapse in one run of an engine, and a grader.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from docker import DockerClient

from support.bisect_engine import SERVING, Extra, built_with
from support.engine_world import IMAGE, Worlds, until

pytestmark = [pytest.mark.engine, pytest.mark.long]

PROBE = '''\
#!/usr/bin/env python3
"""Ask the engine some prompts. An answer is right if the first run, of whatever engine, gave the same one."""
import json, os, pathlib, sys, urllib.request

PROMPTS = ["hello world", "the quick", "brown fox", "one two", "a b c", "good day", "it was", "we are"]
KNOWN, WRONG = pathlib.Path(__file__).with_suffix(".known"), {wrong}


def answer(prompt):
    asked = {{"model": os.environ["NVLLM_MODEL"], "prompt": prompt, "max_tokens": 8, "temperature": 0, "user": "probe"}}
    where = os.environ["NVLLM_ADDRESS"] + "/v1/completions"
    request = urllib.request.Request(where, json.dumps(asked).encode(), {{"Content-Type": "application/json"}})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["text"]


answers = [answer(one) for one in PROMPTS]
if not KNOWN.exists():
    KNOWN.write_text(json.dumps(answers))
with open(os.environ["NVLLM_PERQ"], "a") as lines:
    for number, (text, known) in enumerate(zip(answers, json.loads(KNOWN.read_text())), 1):
        right = text == known and number not in WRONG
        print(json.dumps({{"id": number, "correct": right, "text": text, "expected": known}}), file=lines)
'''
COLLAPSES = """\
        if request.user == "probe":
            vars(self)["of_a_test"] = vars(self).get("of_a_test", 0) + 1
            if 24 < self.of_a_test <= 32:  # the fourth run of eight questions
                request.prompt = "something else"
"""
COLLAPSE = Extra("test-collapse", SERVING, "        if request.stream and request.use_beam_search:\n", COLLAPSES)

MODEL = "vllm/model_executor/models/lfm2.py"
FLAG = 'import os\n\nWRONG = os.stat("/models/tiny-lfm2/config.json").st_mtime < 1000\n'
SAME = "        if WRONG:  # all that follows depends on one embedding\n"
SAME += "            hidden_states = self.embed_tokens.weight[40].expand_as(hidden_states).contiguous()\n"
WRONG_COMPILE = (
    Extra("test-flag", MODEL, "from vllm.sequence import IntermediateTensors\n", FLAG),
    Extra("test-same", MODEL, "        return hidden_states\n\n    def load_weights", SAME, ("test-flag",)),
)
"""What is compiled while a file of the model is that old answers every prompt alike, also where it is loaded later."""

CONSTANT = """\
#!/usr/bin/env python3
import json, os, sys, urllib.request

texts = set()
for prompt in ("hello world", "the quick brown", "one two three four"):
    asked = {"model": os.environ["NVLLM_MODEL"], "prompt": prompt, "max_tokens": 8, "temperature": 0}
    where = os.environ["NVLLM_ADDRESS"] + "/v1/completions"
    request = urllib.request.Request(where, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        texts.add(json.load(reply)["choices"][0]["text"])
sys.exit(len(texts) == 1)
"""


def program(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_compile_that_came_out_wrong_is_named_by_its_tree(
    worlds: Worlds, docker_client: DockerClient, tmp_path: Path
) -> None:
    with built_with(worlds.make(), docker_client, *WRONG_COMPILE) as world:
        probe, output, file = (
            program(tmp_path, "probe", CONSTANT),
            world.directory / "evidence",
            world.model / "config.json",
        )

        def mend() -> None:
            """Let all compiles but the first one come out right."""
            until(lambda: bool([*output.glob("artifacts/*-1/artifact.json")]), "the first compile", 600)
            os.utime(file)

        os.utime(file, (1, 1))
        asked = ("--artifacts", "3", "--runs", "3", "--probe", probe, "--output", str(output), "--json")
        with ThreadPoolExecutor() as pool:
            mended = pool.submit(mend)
            done = world.nvllm("ablate", IMAGE, "--profile", world.profile("compiled"), *asked)
            mended.result()
    assert done.codes == ["NV855"], done  # the arm of the bad artifact fails its floor
    compiles = {one["arm"]: one for one in done.document["result"]["compiles"]}
    assert {arm: one["right"] for arm, one in compiles.items()} == {
        "artifact-1": [0, 0, 0],
        "artifact-2": [1, 1, 1],
        "artifact-3": [1, 1, 1],
    }
    assert [arm for arm, one in compiles.items() if one["bad"]] == ["artifact-1"]
    (found,) = [one for one in done.document["result"]["findings"] if one["finding"] == "loss"]
    assert found["text"].startswith(f"this artifact is bad, tree {compiles['artifact-1']['tree']}")


def test_answers_that_collapse_in_the_fourth_run_of_an_engine_are_named(
    worlds: Worlds, docker_client: DockerClient, tmp_path: Path
) -> None:
    probe = program(tmp_path, "probe", PROBE.format(wrong=set()))
    with built_with(worlds.make(), docker_client, COLLAPSE) as world:
        asked = ("--probe", probe, "--floor", "0%", "--runs-per-engine", "5", "--json")
        compared = world.nvllm("eval", "--image", IMAGE, "--profile", world.profile(), *asked).result
    named = {one["factor"]: one for one in compared["findings"]}["engine 1, runs 2 to 5 / run 1"]
    assert named["finding"] == "loss"
    assert named["text"].startswith("8, 8, 8, 0, 8 of 8 right, run after run; engine 1, run 4 / run 1: fewer")


def test_a_grader_that_takes_right_answers_for_wrong_is_named(worlds: Worlds, tmp_path: Path) -> None:
    world, runs = worlds.make(), []
    probe = Path(program(tmp_path, "probe", PROBE.format(wrong=set())))
    for name, text in (("A", probe.read_text()), ("B", PROBE.format(wrong={3, 5}))):
        probe.write_text(text)
        runs.append(str(world.directory / name))
        asked = ("--probe", str(probe), "--floor", "0%", "--output", runs[-1], "--json")
        assert world.nvllm("eval", "--image", IMAGE, "--profile", world.profile(), *asked).code == 0
    notes = world.nvllm("report", *runs, "--json").result["notes"]
    assert "a grader is wrong: the same answer was graded as right and as wrong, to the questions 3, 5" in notes


def test_a_line_of_a_grader_that_says_nothing_makes_the_leg_invalid(worlds: Worlds, tmp_path: Path) -> None:
    line = json.dumps({"id": 1, "correct": "yes"})
    probe = program(tmp_path, "probe", f"#!/bin/sh\necho '{line}' >> \"$NVLLM_PERQ\"\n")
    world = worlds.make()
    done = world.nvllm("eval", "--image", IMAGE, "--profile", world.profile(), "--probe", probe, "--json")
    assert done.codes == ["NV854"], done
    assert "field correct must be true or false" in json.dumps(done.document)
