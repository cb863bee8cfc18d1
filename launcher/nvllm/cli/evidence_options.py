"""The options of `nvllm ablate`, `bench`, `eval` and `sweep`: what is asked, how often, and what counts as the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, get_args

import click
from click.core import ParameterSource

from nvllm.cli.frame import PATH, FiniteRange
from nvllm.core import parts
from nvllm.core.evaluation import PROMPT, Extraction
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.evidence.records import TRACE_RULES, Margins, TraceRules

F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class QuestionOptions:
    """The options of what is asked. DATA names the questions, COUNT of which SEED draws; the others bound an answer."""

    data: Path | None
    count: int | None
    seed: int
    floor: float | None
    length: int
    timeout: float | None
    concurrency: int
    prompt: str
    stop: tuple[str, ...]
    extract: Extraction


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of a load: so many REQUESTS, with prompts and answers of so many tokens."""

    requests: int
    prompt_len: int
    output_len: int


@dataclass(frozen=True, slots=True)
class MarginOptions:
    """The options of what counts as the same, each a part of 1."""

    margin: float
    margin_questions: float
    margin_length: float

    @property
    def chosen(self) -> Margins:
        return Margins(self.margin, self.margin_questions, self.margin_length)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run: how many RUNS of each arm, and the directory OUTPUT, which FORCE empties.

    With ANYWAY it goes on in what another host began. With DRY_RUN the legs are only shown. With UNTIL_DECIDED there
    may be fewer runs.
    """

    runs: int
    output: Path | None
    force: bool
    anyway: bool
    dry_run: bool
    until_decided: bool


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of runs in one engine: PER_ENGINE of them in each of so many ENGINES, None for as many as runs."""

    per_engine: int
    engines: int | None


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options of traces: whether there are any, so many of each arm, and of how many steps at most."""

    trace: bool
    trace_runs: int
    trace_steps: int

    @property
    def rules(self) -> TraceRules | None:
        """How traces are taken; None without any. Raises Refused NV108 for numbers of what is not taken."""
        if self.trace:
            return TraceRules(self.trace_runs, self.trace_steps)
        options = {"trace_runs": "--trace-runs", "trace_steps": "--trace-steps"}
        refuse_any(
            Refusal("NV108", option, "--trace beside it", "no --trace", "add --trace")
            for name, option in options.items()
            if _was_given(name)
        )
        return None


@dataclass(frozen=True, slots=True)
class ComparedOptions(RunOptions):
    """Those of a run that compares. With COLD each leg compiles for itself, unless its profile is blessed."""

    cold: bool


class Part(click.ParamType[float]):
    """A part of a whole, such as COUNTED, 45/50, or PERCENT, 90%. A bare number is refused: it may mean either."""

    name = "part"

    def __init__(self, counted: str, percent: str) -> None:
        self.counted, self.percent = counted, percent

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        option = param.opts[0] if param is not None else "a part"
        try:
            return parts.part(value)
        except ValueError as error:
            expected = f"a part such as {self.counted} or {self.percent}"
            cure = f"{option} {self.counted}, or {option} {self.percent}"
            raise refuse("NV856", option, expected, str(error), cure) from error


_FLOOR, PART = Part("45/50", "90%"), Part("3/100", "3%")
SEED = click.IntRange(0, 2**31 - 1)
_REQUESTS = click.IntRange(1, 10**6)
_RUNS = click.IntRange(1, 1000)
_TOKENS = click.IntRange(1, 10**7)
AT_ONCE = click.IntRange(1, 10_000)
_DAY = 86400
QUESTIONS = (
    click.option("--data", type=PATH, metavar="FILE", help="Questions as GSM8K has them, one JSON object a line."),
    click.option("--n", "count", type=click.IntRange(1), help="Ask so many of them.  [default: all]"),
    click.option("--seed", type=SEED, default=42, show_default=True, help="Draws the questions."),
    click.option("--floor", type=_FLOOR, metavar="PART", help="Fail below: 45/50, or 90%."),
    click.option("--length", type=_TOKENS, default=512, show_default=True, help="Tokens of an answer."),
    click.option(
        "--timeout",
        type=FiniteRange(0, _DAY, min_open=True),
        metavar="SECONDS",
        help="Seconds for one.  [default: by --length and the rate of the first answers]",
    ),
    click.option("--concurrency", type=AT_ONCE, default=1, show_default=True, help="Requests at once."),
    click.option(
        "--prompt",
        metavar="TEXT",
        default=PROMPT.replace("\n", "\\n"),
        show_default=True,
        help=r"What stands around a {question}; \n ends a line.",
    ),
    click.option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        help="A text that ends an answer; again for more.  [default: what the prompt begins with]",
    ),
    click.option(
        "--extract",
        type=click.Choice(get_args(Extraction)),
        default="flexible",
        show_default=True,
        help="The number after ####, or the last one.",
    ),
)
LOAD = (
    click.option("--requests", type=_REQUESTS, default=100, show_default=True, help="Requests of a leg."),
    click.option("--prompt-len", type=_TOKENS, default=512, show_default=True, help="Tokens of a prompt."),
    click.option("--output-len", type=_TOKENS, default=128, show_default=True, help="Tokens of its answer."),
)
MARGIN_OPTIONS = (
    click.option(
        "--margin",
        type=PART,
        metavar="PART",
        default=0.03,
        help="Speeds this close are the same.  [default: 3%]",
    ),
    click.option(
        "--margin-questions",
        type=PART,
        metavar="PART",
        default=0.05,
        help="Shares of right answers this close are the same.  [default: 5/100]",
    ),
    click.option(
        "--margin-length",
        type=PART,
        metavar="PART",
        default=0.1,
        help="Lengths of answers this close are the same.  [default: 10%]",
    ),
)
RUN = (
    click.option("--output", type=PATH, metavar="DIR", help="Where the evidence goes; a run there goes on."),
    click.option("--force", is_flag=True, help="Remove the run that is in --output."),
    click.option("--anyway", is_flag=True, help="Go on with a run of another host or commit, and mark it as mixed."),
    click.option("--dry-run", is_flag=True, help="Show the legs in their order; start and write nothing."),
    click.option("--until-decided", is_flag=True, help="End before --runs, once all is found."),
)
ENGINES = (
    click.option(
        "--runs-per-engine", "per_engine", type=_RUNS, default=1, show_default=True, help="Runs in one container."
    ),
    click.option("--engines", type=_RUNS, metavar="M", help="Fresh containers, in the place of --runs."),
)
TRACE = (
    click.option(
        "--trace", is_flag=True, help="Run each profile once more under PyTorch's profiler, and list its kernels."
    ),
    click.option(
        "--trace-runs", type=_RUNS, default=TRACE_RULES.runs, show_default=True, help="Traces of each profile."
    ),
    click.option(
        "--trace-steps",
        type=click.IntRange(2, 10_000),
        default=TRACE_RULES.steps,
        show_default=True,
        help="Steps of the engine in one, at most.",
    ),
)
COMPARED = (*RUN, click.option("--cold", is_flag=True, help="Each leg compiles for itself, unless it is blessed."))


def runs_option(default: int, what: str) -> Callable[[F], F]:
    return click.option("--runs", type=_RUNS, default=default, show_default=True, help=what)


def _was_given(name: str) -> bool:
    """Return whether the option with the parameter NAME stands on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


R = TypeVar("R", bound=RunOptions)


def counted(run: R, engines: EngineOptions) -> tuple[R, int]:
    """Return RUN with the number of all runs of an arm, and how many of them one engine of ENGINES is asked.

    Raises Refused NV108 if the engines are counted twice.
    """
    if engines.engines is not None and _was_given("runs"):
        both = f"--runs {run.runs} and --engines {engines.engines}"
        raise refuse("NV108", "--engines", "--engines M or --runs M, the fresh containers", both, "name one of them")
    return replace(run, runs=(engines.engines or run.runs) * engines.per_engine), engines.per_engine
