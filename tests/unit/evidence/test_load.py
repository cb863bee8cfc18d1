"""The load of a bench: vLLM's own command, and what its result says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from nvllm.core.spec import Waiver
from nvllm.evidence.load import PRIMARY, LoadProbe, LoadThenQuestions
from nvllm.serve.startup import EngineStart
from nvllm.trials.probing import Asked, QuestionProbe
from support.evidence_samples import answer
from support.evidence_world import QUESTIONS
from support.plansamples import PLAN
from support.rows import each_row

LOAD = LoadProbe("vllm", 20, 2, 64, 32, 42)
RESULT: dict[str, Any] = {
    "completed": 20,
    "failed": 0,
    "duration": 4.0,
    "total_output_tokens": 640,
    "output_throughput": 160.0,
    "request_throughput": 5.0,
    **{f"p{share}_{name}_ms": share * 1.0 for name in ("ttft", "tpot", "itl", "e2el") for share in (50, 95, 99)},
}


@dataclass
class Container:
    """A container in which the command ends with STATUS and leaves RESULT."""

    status: int = 0
    result: str | None = json.dumps(RESULT)
    ran: list[list[str]] = field(default_factory=list)

    def run_in(self, container: str, argv: list[str]) -> tuple[int, str]:
        self.ran.append(argv)
        return self.status, "what it wrote"

    def read_in(self, container: str, path: str) -> str | None:
        return self.result


@dataclass
class Started:
    engine: Container
    container: str = "4f"
    plan: object = PLAN


def ask(engine: Container, halfway: list[str] | None = None) -> Any:
    seen = [] if halfway is None else halfway
    return LOAD.ask(cast("EngineStart", Started(engine)), 3, lambda: seen.append("between"))


def test_the_command_is_vllm_s_own() -> None:
    command = LOAD.command(PLAN, 3)
    assert command[:3] == ["vllm", "bench", "serve"]
    options = dict(zip(command[3:-3:2], command[4:-3:2], strict=True))
    assert options["--base-url"] == "http://127.0.0.1:8000"
    assert (options["--tokenizer"], options["--seed"]) == ("/models/tiny", "45")
    assert (options["--num-prompts"], options["--max-concurrency"]) == ("20", "2")
    hosted = replace(PLAN, waivers=(Waiver("host-network", "a reason"),))
    assert f"http://127.0.0.1:{PLAN.port}" in LOAD.command(hosted, 3)


def test_the_figures_are_those_of_the_result() -> None:
    engine, seen = Container(), list[str]()
    found = ask(engine, seen)
    assert found.figures["output tokens/s"] == 160.0
    assert found.figures["p99 itl, ms"] == 99.0
    assert found.figures.keys() >= PRIMARY.keys()
    (answer,) = found.answers
    assert (answer.correct, answer.tokens, answer.seconds, answer.problem) == (True, 640, 4.0, "")
    assert seen == ["between"]


@each_row(
    ("engine", "problem"),
    [
        (Container(status=1), "exit status 1: what it wrote"),
        (Container(result=None), "exit status 0"),
        (Container(result="[]"), "another form"),
        (Container(result="{}"), "another form"),
        (Container(result=json.dumps({**RESULT, "duration": "NaN"})), "no figure: NaN"),
        (Container(result=json.dumps({**RESULT, "completed": "9" * 5000})), "no figure: 999"),
        (Container(result=json.dumps({**RESULT, "completed": 1e300})), "no figure: 1e+300"),
        (Container(result=json.dumps({**RESULT, "request_throughput": -1})), "no figure: -1"),
        (Container(result=json.dumps({**RESULT, "completed": 19})), "19 of 20 requests completed"),
    ],
)
def test_what_is_no_result_is_a_problem(engine: Container, problem: str) -> None:
    (answer,) = ask(engine).answers
    assert problem in answer.problem
    assert not answer.correct


class Answers(QuestionProbe):
    """Questions that need no engine."""

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        return Asked((answer(run, 1),))


ASKED = Answers("gsm8k", QUESTIONS, 42, 16, 30.0, 2, 45.0)


def test_a_leg_of_a_sweep_is_the_load_and_then_the_questions() -> None:
    both, seen = LoadThenQuestions(LOAD, ASKED), list[str]()
    found = both.ask(cast("EngineStart", Started(Container())), 3, lambda: seen.append("between"))
    assert found.figures["output tokens/s"] == 160.0
    assert [one.id for one in found.answers] == [1]
    assert seen == ["between"]
    assert both.state.floor == 45.0
    assert both.state.name.endswith("20 requests of 64 tokens, answers of 32, 2 at a time; then gsm8k")
    assert both.state.sha256 != replace(both, load=replace(LOAD, length=33)).state.sha256


def test_a_load_that_fails_ends_the_leg_of_a_sweep() -> None:
    both = LoadThenQuestions(LOAD, ASKED)
    (failed,) = both.ask(cast("EngineStart", Started(Container(status=1))), 3, lambda: None).answers
    assert "exit status 1" in failed.problem


def test_another_load_is_another_probe() -> None:
    assert LOAD.state.sha256 != replace(LOAD, concurrency=3).state.sha256
