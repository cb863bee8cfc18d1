"""Tasks of lm-eval (EleutherAI's harness), asked of the engine of a leg. It runs as a program of its own, on the host.

lm-eval has the tasks, the prompts and the metrics. Its log of every sample stays with the evidence and becomes answers.
It gets the tokenizer of the model that is served, from the files that were checked: tasks that score given answers must
know where an answer begins, and a prompt that is too long is cut as for any other model of lm-eval.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path, PurePosixPath
from typing import Any

from nvllm.core import canonical, extras, proc, reading
from nvllm.core.canonical import Json
from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import refuse
from nvllm.serve import health
from nvllm.serve.health import NotReady
from nvllm.serve.startup import EngineStart
from nvllm.trials.answers import Answered, ProbeState, unanswered
from nvllm.trials.probing import KEPT, Asked

DIRECTORY = "lm-eval"
"""Where in a leg its output is: results_*.json and samples_*.jsonl."""
_LONGEST = 24 * 3600.0
"""Seconds. A suite takes hours; one that hangs must not hold the locks of the run for ever."""
_SHOWN = 600
_PASSED = ("HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_CACHE")


@dataclass(frozen=True, slots=True)
class LmEvalProbe:
    """TASKS of lm-eval, LIMIT documents of each, CONCURRENCY at a time. INCLUDE has task files of one's own."""

    tasks: tuple[str, ...]
    include: Path | None
    limit: int | None
    seed: int
    timeout: float
    concurrency: int
    floor: float | None
    programs: proc.Programs

    @property
    def state(self) -> ProbeState:
        own: Json = {} if self.include is None else {str(path): text for path, text in _hashes(self.include)}
        about: Json = [version(), [*self.tasks], self.limit, self.seed, own]
        name = f"lm-eval {version()}, {', '.join(self.tasks)}" + (f", {self.limit} of each" if self.limit else "")
        digest = canonical.digest("nvllm.lm-eval/1", about)
        return ProbeState(name, digest, 0, self.seed, 0, self.timeout, self.concurrency, self.floor)

    def ask(self, start: EngineStart, run: int, halfway: Callable[[], None]) -> Asked:
        output = start.run.path / DIRECTORY
        # The proxies of the user are passed on, and none of them reaches this host's loopback.
        environment = proc.environment({"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}, _PASSED)
        with tempfile.TemporaryDirectory(prefix="nvllm-lm-eval-") as scratch:
            link_model(start.plan, Path(scratch))
            try:
                command = self.command(start.plan, health.longest(start.plan.port), Path(scratch), output)
                done = self.programs.run(command, env=environment, timeout=_LONGEST)
            except (OSError, subprocess.TimeoutExpired) as error:
                return Asked((unanswered(run, f"lm-eval: {error}"),))
            except NotReady as error:
                return Asked((unanswered(run, error.problem),))
        halfway()
        if done.returncode != 0:
            text = (done.stdout + done.stderr).decode("utf-8", "replace")
            return Asked((unanswered(run, f"lm-eval: exit status {done.returncode}: {text[-_SHOWN:]}"),))
        return Asked(tuple(answers(output, run)) or (unanswered(run, "lm-eval wrote no samples"),))

    def command(self, plan: LaunchPlan, longest: int, tokenizer: Path, output: Path) -> list[str]:
        """Return the command that asks the engine of PLAN, whose requests have LONGEST tokens, and writes to OUTPUT.

        TOKENIZER is the directory of its tokenizer.
        """
        model = {
            "model": plan.request_name,
            "base_url": f"http://127.0.0.1:{plan.port}/v1/completions",
            "num_concurrent": self.concurrency,
            "timeout": round(self.timeout),
            "max_retries": 1,
            "max_length": longest,
            "tokenizer_backend": "huggingface",
            "tokenizer": tokenizer,
        }
        options: dict[str, object] = {
            "model": "local-completions",
            "model_args": ",".join(f"{name}={value}" for name, value in model.items()),
            "tasks": ",".join(self.tasks),
            "seed": self.seed,
            "output_path": output,
            **({"include_path": self.include.absolute()} if self.include is not None else {}),
            **({"limit": self.limit} if self.limit is not None else {}),
        }
        named = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "lm_eval", *named, "--log_samples"]


def link_model(plan: LaunchPlan, directory: Path) -> None:
    """Link the files of the model that PLAN serves in DIRECTORY: those that its container has, and no others."""
    for mount in plan.mounts:
        target = PurePosixPath(mount.target)
        if target.is_relative_to(plan.model.path):
            link = directory / target.relative_to(plan.model.path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(mount.source)


def require() -> None:
    """Raise Refused NV512 if lm-eval is not installed beside nvllm."""
    if util.find_spec("lm_eval") is None:
        expected, cure = "the Python package lm-eval", extras.installing("eval")
        raise refuse("NV512", "nvllm eval lm-eval", expected, "not installed", cure)


def version() -> str:
    """Return the version of lm-eval."""
    return metadata.version("lm-eval")


def answers(output: Path, run: int) -> Iterator[Answered]:
    """Yield an answer for each document of each task in OUTPUT.

    It is correct if the first metric of the task is 1; of a task with several filters the first one counts.
    """
    number, seen = 0, set[tuple[str, str]]()
    for path in sorted(output.rglob("samples_*.jsonl")):
        for line in reading.content(path, reading.LOG).splitlines():
            number += 1
            try:
                sample: Any = canonical.decode(line)
                document = (path.name, str(sample["doc_id"]))
                if document not in seen:
                    yield _answer(run, len(seen) + 1, sample)
                seen.add(document)
            except (ValueError, LookupError, TypeError) as error:
                yield unanswered(run, f"{path.name}, sample {number}: {error!r}")


def _answer(run: int, number: int, sample: Mapping[str, Any]) -> Answered:
    correct = float(sample[sample["metrics"][0]]) == 1.0
    filtered, responses = _first(sample["filtered_resps"]), sample["resps"]
    # A task that scores several answers is graded by all of their scores.
    text = _first(responses) if len(responses) == 1 else str(responses)
    return Answered(run, number, correct, str(sample["target"]), filtered[:KEPT], 0.0, 0, text[:KEPT])


def _first(value: object) -> str:
    """Return the innermost first text of VALUE, lists in lists."""
    while isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = value[0]
    return str(value)


def _hashes(directory: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file below DIRECTORY with its sha256."""
    for path in sorted(entry for entry in directory.rglob("*") if entry.is_file()):
        yield path.relative_to(directory), hashlib.sha256(reading.content(path, reading.LOG)).hexdigest()
