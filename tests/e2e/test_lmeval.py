"""`nvllm eval lm-eval` with the real lm-eval and the real engine: tasks that generate, and tasks that score answers.

lm-eval is installed into an environment of the test's own, on top of the one that the tests run in: some 700 MB.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from support.engine_world import IMAGE, ROOT, Done, World, Worlds, run

pytestmark = [pytest.mark.engine, pytest.mark.long]

HEAD = "dataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
GENERATES = """task: sums
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[gold]}}"
generation_kwargs: {until: ["Q:"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
SCORES = """task: picked
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
DOCUMENTS = [
    {"question": f"{one} + {one} =", "choices": [str(one), str(2 * one), str(one + 7)], "gold": 1}
    for one in range(1, 5)
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that has lm-eval, and what the tests have."""
    place = tmp_path_factory.mktemp("lm-eval")
    venv.create(place, with_pip=True)
    (site,) = place.glob("lib/python3*/site-packages")
    (site / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    found = str(place / "bin/python")
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["eval"]
    argv = [found, "-m", "pip", "install", "--quiet", "--ignore-installed", "--disable-pip-version-check", *extra]
    done = run(argv, os.environ)
    assert done.code == 0, done.err[-2000:]
    return found


def evaluated(python: str, world: World, output: Path, *words: str) -> Done:
    """Ask both tasks of the eager profile of WORLD, into OUTPUT."""
    tasks = world.directory / "tasks"
    if not tasks.exists():
        tasks.mkdir()
        data = world.directory / "data.jsonl"
        data.write_text("".join(json.dumps(one) + "\n" for one in DOCUMENTS))
        for name, text in (("sums", GENERATES), ("picked", SCORES)):
            (tasks / f"{name}.yaml").write_text(HEAD.format(data=data) + text)
    args = ("eval", "lm-eval", "--tasks", "picked,sums", "--include", str(tasks), "--image", IMAGE, "--profile")
    env = {
        **world.env,
        "PYTHONPATH": str(ROOT / "launcher"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(world.directory / "hub"),
    }
    argv = [python, *world.argv(*args, world.profile(), "--output", str(output), *words, "--json")[1:]]
    return run(argv, env)


def test_tasks_that_generate_and_tasks_that_score_are_answered(python: str, worlds: Worlds) -> None:
    assert python != sys.executable
    world = worlds.make()
    output = world.directory / "evidence"
    found = evaluated(python, world, output)
    (arm,) = found.result["arms"]
    assert (arm["name"], arm["outcome"]) == (world.profile(), "passed")
    leg = output / "arms" / world.profile() / "run-1"
    answers = [json.loads(one) for one in (leg / "perq.jsonl").read_text().splitlines()]
    assert len(answers) == 2 * len(DOCUMENTS)
    samples = {path.name.split("_")[1]: path.read_text() for path in leg.rglob("samples_*.jsonl")}
    assert sorted(samples) == ["picked", "sums"]
    scored = [json.loads(one) for one in samples["picked"].splitlines()]
    # One number for each of three answers, none of them 0: the engine scored what it was given.
    assert all(len(one["filtered_resps"]) == 3 and all(float(score) < 0 for score, _ in one["filtered_resps"])
               for one in scored)  # fmt: skip
    assert sum(one["acc"] for one in scored) == sum(one["correct"] for one in answers[: len(DOCUMENTS)])
    again = evaluated(python, world, output)
    assert again.result == found.result  # nothing was asked again
    missed = evaluated(python, world, world.directory / "floor", "--floor", "100%")
    assert (missed.code, missed.codes) == (1, ["NV855"])
