"""The load of a bench: vLLM's own `vllm bench serve`, from the image that is measured, run in its container."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.plan import CONTAINER_PORT, LaunchPlan
from nvllm.serve.startup import EngineStart
from nvllm.trials.answers import Answered, ProbeState, unanswered
from nvllm.trials.probing import Asked, LegProbe

_RESULT = "/tmp/nvllm-bench.json"  # noqa: S108 - in the container, a tmpfs of its own
_SHOWN = 600

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "ttft": "to the first token",
        "tpot": "per token after the first",
        "itl": "between two tokens",
        "e2el": "of a whole request",
    }
)
"""What latencies are measured, in milliseconds, and what each is."""
PERCENTILES = (50, 95, 99)

PRIMARY: Mapping[str, bool] = MappingProxyType(
    {"output tokens/s": True, "p50 ttft, ms": False, "p50 itl, ms": False, "p50 e2el, ms": False}
)
"""The figures that are compared, and whether more of each is better. More of them would widen every interval."""


def figure(share: int, metric: str) -> str:
    """Return the name of the figure that is percentile SHARE of METRIC."""
    return f"p{share} {metric}, ms"


@dataclass(frozen=True, slots=True)
class LoadProbe:
    """REQUESTS with random prompts of PROMPT tokens and answers of LENGTH tokens, CONCURRENCY at a time, streamed.

    PROGRAM is vLLM's command in the image.
    """

    program: str
    requests: int
    concurrency: int
    prompt: int
    length: int
    seed: int

    @property
    def state(self) -> ProbeState:
        about: Json = [self.requests, self.concurrency, self.prompt, self.length, self.seed]
        digest = canonical.digest("nvllm.load/1", about)
        name = f"vllm bench serve, {self.requests} requests of {self.prompt} tokens"
        return ProbeState(name, digest, 0, self.seed, self.length, 0.0, self.concurrency, None)

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        measured = self.measure(start, run)
        halfway()
        return measured

    def measure(self, start: EngineStart, run: int) -> Asked:
        """Put the load of RUN on the engine of START, and return the figures of vLLM."""
        return self._measured(start, self.command(start.plan, run), run)

    def profiled(self, start: EngineStart) -> Asked:
        """Put the load of run 0 on the engine of START while its profiler records, and return the figures of vLLM."""
        return self._measured(start, [*self.command(start.plan, 0), "--profile"], 0)

    def _measured(self, start: EngineStart, command: Sequence[str], run: int) -> Asked:
        status, output = start.engine.run_in(start.container, command)
        text = start.engine.read_in(start.container, _RESULT) if status == 0 else None
        if text is None:
            problem = f"vllm bench serve: exit status {status}: {output[-_SHOWN:]}"
            return Asked((unanswered(run, problem),))
        return self.read(text, run)

    def command(self, plan: LaunchPlan, run: int) -> list[str]:
        """Return the command of RUN. Each run has other prompts, the same for all profiles."""
        # The command runs in the container, where vLLM listens on its own port unless the network is the host's.
        port = plan.port if any(waiver.name == "host-network" for waiver in plan.waivers) else CONTAINER_PORT
        directory, _, name = _RESULT.rpartition("/")
        options = {
            "backend": "vllm",
            "base-url": f"http://127.0.0.1:{port}",
            "model": plan.request_name,
            "tokenizer": plan.model.path,
            "dataset-name": "random",
            "random-input-len": self.prompt,
            "random-output-len": self.length,
            "num-prompts": self.requests,
            "max-concurrency": self.concurrency,
            "num-warmups": self.concurrency,
            "seed": self.seed + run,
            "temperature": 0,
            "percentile-metrics": ",".join(METRICS),
            "metric-percentiles": ",".join(map(str, PERCENTILES)),
            "result-dir": directory,
            "result-filename": name,
        }
        named = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        # Without an end of its own every answer has its full length, so all arms generate the same number of tokens.
        return [self.program, "bench", "serve", *named, "--ignore-eos", "--save-result", "--disable-tqdm"]

    def read(self, text: str, run: int) -> Asked:
        """Return what TEXT, the result of vLLM for RUN, says. A request that failed makes it a problem."""
        problem, completed, tokens, seconds = "", 0, 0, 0.0
        figures: dict[str, float] = {}
        try:
            result = canonical.mapping(canonical.decode(text.encode()))
            completed, tokens = int(_number(result["completed"])), int(_number(result["total_output_tokens"]))
            seconds = _number(result["duration"])
            figures = {
                "output tokens/s": _number(result["output_throughput"]),
                "requests/s": _number(result["request_throughput"]),
                **{
                    figure(share, metric): _number(result[f"p{share}_{metric}_ms"])
                    for metric in METRICS
                    for share in PERCENTILES
                },
            }
        except (ValueError, KeyError) as error:
            problem = f"a result of another form: {error!r}"
        if not problem and completed != self.requests:
            problem = f"{completed} of {self.requests} requests completed"
        answer = Answered(run, 0, not problem, str(self.requests), str(completed), seconds, tokens, "", problem)
        return Asked((answer,), figures)


@dataclass(frozen=True, slots=True)
class LoadThenQuestions:
    """LOAD, and then QUESTIONS, on one engine: what a leg of a sweep is asked. A load that fails ends the leg."""

    load: LoadProbe
    questions: LegProbe

    @property
    def state(self) -> ProbeState:
        load, asked = self.load.state, self.questions.state
        name = f"{load.name}, answers of {load.length}, {load.concurrency} at a time; then {asked.name}"
        return replace(asked, name=name, sha256=canonical.digest("nvllm.sweep/1", [load.sha256, asked.sha256]))

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        measured = self.load.measure(start, run)
        halfway()
        if any(answer.problem for answer in measured.answers):
            return measured
        return replace(self.questions.ask(start, run, lambda: None), figures=measured.figures)


def _number(value: Json) -> float:
    """Return VALUE, a figure of a result. Raises ValueError for a text, such as NaN, and for what JSON cannot keep."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= canonical.EXACT:
        raise ValueError(f"no figure: {str(value)[:80]}")
    return float(value)
