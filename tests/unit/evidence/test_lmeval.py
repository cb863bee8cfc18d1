"""Tasks of lm-eval: its command, its samples as answers, what fails; with the real package where it is installed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from typing import Any, cast

import pytest

from nvllm.core import extras, proc
from nvllm.core.plan import Mount
from nvllm.core.refusal import Refused
from nvllm.evidence import lmeval
from nvllm.evidence.lmeval import LmEvalProbe
from nvllm.serve import health
from nvllm.serve.health import NotReady
from nvllm.serve.startup import EngineStart
from nvllm.trials.probing import Asked
from support.engine_world import ROOT
from support.host_samples import put_program
from support.plansamples import PLAN, FrontEnd

PROBE = LmEvalProbe(("sums", "primes"), None, 3, 42, 30.0, 2, 45.0, proc.Programs())
PROGRAM = """
import json, pathlib, sys
assert sys.argv[1:3] == ["-m", "lm_eval"]
output = pathlib.Path(sys.argv[sys.argv.index("--output_path") + 1]) / "tiny"
output.mkdir(parents=True)
{body}
"""


def sample(filtered: str, document: int, *, right: bool) -> str:
    """Return a line of lm-eval's log for DOCUMENT by the filter FILTERED."""
    return json.dumps(
        {
            "doc_id": document,
            "target": "2",
            "filter": filtered,
            "resps": [[f" it is {document}"]],
            "filtered_resps": [str(document)],
            "metrics": ["exact_match"],
            "exact_match": float(right),
        }
    )


LINES = "\n".join(
    (
        sample("strict", 0, right=False),
        sample("strict", 2, right=True),
        sample("flexible", 0, right=True),
        sample("flexible", 2, right=True),
    )
)
TASK = """task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["Q:"], max_gen_toks: 16, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
filter_list:
  - name: last-number
    filter: [{{function: regex, regex_pattern: "([0-9]+)", group_select: -1}}, {{function: take_first}}]
"""


@dataclass
class Run:
    path: Path


@dataclass
class Started:
    run: Run
    plan: object = PLAN
    seen: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "longest", lambda _: 128)


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmeval, "version", lambda: "0.4.13")


def ask(tmp_path: Path, probe: LmEvalProbe = PROBE, plan: object = PLAN) -> Asked:
    started = Started(Run(tmp_path / "leg"), plan)
    return probe.ask(cast("EngineStart", started), 2, lambda: started.seen.append("between"))


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Install a program in the place of lm-eval, whose BODY writes into the directory OUTPUT."""
    script = tmp_path / "stand_in.py"
    script.write_text(PROGRAM.format(body=body))
    put_program(tmp_path, "python", f'exec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"')
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


def test_samples_become_answers_and_the_first_filter_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, f"(output / 'samples_sums_1.jsonl').write_text({LINES!r})")
    found = ask(tmp_path).answers
    assert [(one.run, one.id, one.correct, one.found, one.expected) for one in found] == [
        (2, 1, False, "0", "2"),
        (2, 2, True, "2", "2"),
    ]
    assert found[1].text == " it is 2"
    assert (tmp_path / "leg/lm-eval/tiny/samples_sums_1.jsonl").read_text() == LINES


def test_the_text_of_a_task_that_scores_answers_has_all_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [[["-3.1", "False"]], [["-2.5", "False"]]]
    line = json.dumps({**json.loads(sample("none", 0, right=True)), "resps": scores, "filtered_resps": scores})
    installed(tmp_path, monkeypatch, f"(output / 'samples_sums_1.jsonl').write_text({line!r})")
    (answered,) = ask(tmp_path).answers
    assert (answered.correct, answered.text) == (True, str(scores))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("sys.exit('Tasks not found: sums')", "exit status 1: Tasks not found: sums"),
        ("pass", "lm-eval wrote no samples"),
        ("(output / 'samples_sums_1.jsonl').write_text('{}')", "samples_sums_1.jsonl, sample 1: KeyError"),
        ("(output / 'samples_sums_1.jsonl').write_text('[')", "samples_sums_1.jsonl, sample 1: "),
    ],
)
def test_what_is_no_sample_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, problem: str
) -> None:
    installed(tmp_path, monkeypatch, body)
    (answer,) = ask(tmp_path).answers
    assert problem in answer.problem
    assert not answer.correct


def test_the_command_asks_the_engine_of_the_leg(tmp_path: Path) -> None:
    command = PROBE.command(PLAN, 128, Path("/tokenizer"), tmp_path)
    options = dict(zip(command[3:-1:2], command[4:-1:2], strict=True))
    assert options["--model"] == "local-completions"
    assert f"base_url=http://127.0.0.1:{PLAN.port}/v1/completions" in options["--model_args"]
    assert (options["--tasks"], options["--limit"], options["--seed"]) == ("sums,primes", "3", "42")
    assert {"max_length=128", "tokenizer=/tokenizer"} <= {*options["--model_args"].split(",")}
    assert "--include_path" not in options
    assert "--limit" not in replace(PROBE, limit=None).command(PLAN, 128, Path("/tokenizer"), tmp_path)


def test_the_tokenizer_is_that_of_the_container(tmp_path: Path) -> None:
    model = PLAN.model.path
    mounts = (
        Mount("/store/config.json", f"{model}/config.json"),
        Mount("/store/part/one", f"{model}/part/one"),
        Mount("/other", f"{model}-2/config.json"),
    )
    lmeval.link_model(replace(PLAN, mounts=mounts), tmp_path)
    found = {str(one.relative_to(tmp_path)): str(one.readlink()) for one in tmp_path.rglob("*") if one.is_symlink()}
    assert found == {"config.json": "/store/config.json", "part/one": "/store/part/one"}


def test_an_engine_that_says_no_length_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: int) -> int:
        raise NotReady("no list of models", final=True)

    monkeypatch.setattr(health, "longest", silent)
    (answer,) = ask(tmp_path).answers
    assert answer.problem == "no list of models"


@pytest.mark.usefixtures("version")
def test_another_task_file_is_another_probe(tmp_path: Path) -> None:
    (tmp_path / "sums.yaml").write_text("task: sums")
    own = replace(PROBE, include=tmp_path)
    before = own.state
    assert before.name == "lm-eval 0.4.13, sums, primes, 3 of each"
    (tmp_path / "sums.yaml").write_text("task: other")
    assert own.state.sha256 != before.sha256 != PROBE.state.sha256


def test_without_the_package_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    with pytest.raises(Refused) as caught:
        lmeval.require()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.cure) == ("NV512", extras.installing("eval"))


@pytest.mark.skipif(util.find_spec("lm_eval") is None, reason="lm-eval is not installed: the extra `eval`")
def test_the_real_package_asks_a_task_of_its_own(
    tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    data, tasks = tmp_path / "sums.jsonl", tmp_path / "tasks"
    data.write_text("".join(json.dumps({"question": f"1 + {one}", "answer": str(1 + one)}) + "\n" for one in range(3)))
    tasks.mkdir()
    (tasks / "sums.yaml").write_text(TASK.format(data=data))
    answered: dict[str, Any] = {"choices": [{"index": 0, "text": " it is 2"}], "usage": {"completion_tokens": 3}}
    front.body = json.dumps(answered).encode()
    probe = replace(PROBE, tasks=("sums",), include=tasks, concurrency=1)
    model = tmp_path / "model"
    model.mkdir()
    make = [sys.executable, str(ROOT / "launcher/nvllm/runtime/tiny_models.py"), "tiny-lfm2", str(model)]
    subprocess.run(make, check=True)
    mounts = tuple(Mount(str(one), f"{PLAN.model.path}/{one.name}") for one in model.iterdir())
    found = ask(tmp_path, probe, replace(PLAN, port=front.port, mounts=mounts)).answers
    assert [(one.expected, one.found, one.correct) for one in found] == [
        ("1", "2", False),
        ("2", "2", True),
        ("3", "2", False),
    ]
    assert probe.state.name.startswith("lm-eval 0.")
