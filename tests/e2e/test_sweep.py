"""`nvllm sweep` and `nvllm bench --trace` on the real engine: evidence, a run that goes on, operators of the CPU."""

from __future__ import annotations

import gzip
import json

import pytest

from support import question_samples
from support.engine_world import IMAGE, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

LOAD = ("--requests", "4", "--concurrency", "2", "--prompt-len", "32", "--output-len", "16")


def test_a_sweep_runs_every_profile_and_the_first_one_again(worlds: Worlds) -> None:
    world = worlds.make()
    output, names = world.directory / "evidence", (world.profile(), world.profile("ablation"))
    data = question_samples.write(world.directory / "questions.jsonl", 8)
    asked = ("--probe", "gsm8k", "--data", str(data), "--length", "24", "--runs", "1", "--output", str(output))
    args = ("sweep", IMAGE, "--profiles", ",".join(names), *LOAD, *asked, "--json")
    found = world.nvllm(*args).result
    arms = (*names, f"{names[0]}-2")
    assert {one["name"]: one["outcome"] for one in found["arms"]} == dict.fromkeys(arms, "passed")
    assert [one["factor"] for one in found["findings"]] == [f"{one} / {names[0]}" for one in arms[1:]]
    assert {one["finding"] for one in found["findings"]} == {"unknown"}  # one run has no interval
    for arm in arms:
        leg = output / "arms" / arm / "run-1"
        assert len((leg / "perq.jsonl").read_text().splitlines()) == 8
        assert json.loads((leg / "verdict.json").read_text())["figures"]["output tokens/s"] > 0
    assert f"{arms[2]} is {arms[0]} once more" in (output / "ANALYSIS.md").read_text()
    again = world.nvllm(*args)
    assert again.result == found  # nothing was run again
    assert again.seconds < 60


def test_a_sweep_asks_the_questions_of_the_profile_that_the_spec_names(worlds: Worlds) -> None:
    world = worlds.make()
    output, profile, other = world.directory / "evidence", world.profile("compiled"), world.profile()
    world.edit({"a cold compile, so a development profile\n": f"compiled\n    campaign: {{evaluate-as: {other}}}\n"})
    data = question_samples.write(world.directory / "questions.jsonl", 4)
    asked = ("--probe", "gsm8k", "--data", str(data), "--length", "24", "--runs", "1", "--output", str(output))
    found = world.nvllm("sweep", IMAGE, "--profiles", profile, *LOAD, *asked, "--json").result
    assert {one["outcome"] for one in found["arms"]} == {"passed"}
    leg = output / "arms" / profile / "run-1"
    verdict = json.loads((leg / "verdict.json").read_text())
    assert verdict["tree"]
    assert (verdict["asked"], verdict["evaluation"]["profile"]) == (4, other)
    assert "tree" not in verdict["evaluation"]  # the other profile is eager
    logs = [path.read_text() for path in (leg / "engine.log", leg / "evaluation" / "engine.log")]
    assert ["Directly load AOT" in one for one in logs] == [True, False]
    assert f"{profile} was asked the questions as profile {other}, in an engine of its own" in found["notes"]


def test_a_trace_lists_the_operators_of_the_processor(worlds: Worlds) -> None:
    world = worlds.make()
    output = world.directory / "evidence"
    profile = ("--profile", world.profile(), "--runs", "1", "--output", str(output))
    found = world.nvllm("bench", IMAGE, *profile, *LOAD, "--trace", "--json").result
    (table,) = found["kernels"]
    assert (table["on"], table["arm"]) == ("cpu", world.profile())
    assert {"aten::mm", "aten::addmm", "aten::linear", "aten::copy_"} & {one["name"] for one in table["kernels"]}
    assert 0 < sum(one["microseconds"] for one in table["kernels"]) <= table["microseconds"] + 1
    kept = output / "arms" / world.profile() / "trace" / table["trace"]
    assert kept.stat().st_size < 16 << 20
    assert json.loads(gzip.decompress(kept.read_bytes()))["traceEvents"]
    assert "operators of the processor" in (output / "summary.md").read_text()
    assert "there is none here" in (output / "ANALYSIS.md").read_text()
