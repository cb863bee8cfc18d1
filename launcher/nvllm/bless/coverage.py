"""Rounds of requests to a started engine, until it compiles nothing more: `core/workload.py` says which requests.

The bootstrap of a bless asks them, so that the cache has what requests need. Each trial asks the same ones, and must
compile nothing. On a GPU the kernels are counted that Triton compiled, on the CPU the graphs that Inductor compiled.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from nvllm.bless import joint
from nvllm.cache.cachetree import Tree
from nvllm.cache.manifest import Coverage, KernelVariants
from nvllm.core import workload
from nvllm.core.progress import Progress
from nvllm.core.workload import JointStep, Request, Step
from nvllm.serve import health, staged_cache
from nvllm.serve.health import NotReady
from nvllm.serve.startup import EngineStart

MOST_ROUNDS = 20
"""Rounds after which an engine that still compiles is given up."""

LOG_DELAY = 1.0
"""Seconds until a line that the engine has written is in its log here."""

_ANSWER = 600.0
"""Seconds that an answer may take: it may wait for the compilation of several kernels."""

_REFUSED = 400
"""The HTTP status by which an engine says that it does not support a sampling setting."""


@dataclass(frozen=True, slots=True)
class Covered:
    """The result of rounds: how much was NEW in each, and how many REQUESTS were answered.

    UNMET names the joint steps whose requests never met in one.
    """

    new: tuple[int, ...]
    requests: int
    unmet: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rounds:
    """What an engine is asked: the STEPS of a round by its number, each of at most BATCH requests, and its JOINT steps.

    COMPILED returns how much the engine has compiled so far, in WORDS; QUIET rounds in a row must need nothing new.
    """

    steps: Callable[[int], tuple[Step, ...]]
    joint: Callable[[int], tuple[JointStep, ...]]
    batch: int
    compiled: Callable[[], int]
    words: str
    quiet: int


def rounds(start: EngineStart, arguments: Mapping[str, bool | int | float | str], quiet: int) -> Rounds:
    """Return what the engine of START is asked, which has the ARGUMENTS. Raises NotReady if it does not say its bounds.

    On a GPU, QUIET rounds must need nothing new; on the CPU one, because rounds differ there in their prompts alone.
    """
    adapters = tuple(adapter.name for adapter in start.plan.adapters)
    of = workload.bounds(arguments, health.longest(start.plan.port), adapters)
    if start.plan.gpu is None:
        steps = partial(workload.sampling_steps, of)
        return Rounds(
            steps, lambda _: (), of.batch, lambda: len(staged_cache.graphs(start.scratch())), "graphs", quiet=1
        )

    def kernels() -> int:
        time.sleep(LOG_DELAY)
        start.read_log()
        return len(start.timeline.kernels)

    steps, joint_steps = partial(workload.steps, of), partial(workload.joint_steps, of)
    return Rounds(steps, joint_steps, of.batch, kernels, "kernels", quiet)


def until_quiet(start: EngineStart, asked: Rounds, first: int, progress: Progress) -> Covered:
    """Ask the engine of START the FIRST rounds, and then more, until enough of these in a row needed nothing new.

    Raises NotReady if a request fails, or if `MOST_ROUNDS` later the engine still compiles.
    """
    before = asked.compiled()
    new: list[int] = []
    requests = 0
    met: dict[str, bool] = {}
    for number in range(first + MOST_ROUNDS):
        answered = _round(start, asked, number) + _join(start, asked, number, met)
        now = asked.compiled()
        new.append(now - before)
        before, requests = now, requests + answered
        progress.note(f"round {number + 1}: {answered} requests, {new[-1]} new {asked.words}")
        if len(new) >= first + asked.quiet and not any(new[-asked.quiet :]):
            return Covered(tuple(new), requests, tuple(name for name in met if not met[name]))
    counts = ", ".join(map(str, new))
    raise NotReady(f"{len(new)} rounds of requests, and still new {asked.words}: {counts}", final=True)


def again(start: EngineStart, asked: Rounds, count: int) -> None:
    """Ask the engine of START the first COUNT rounds. Raises NotReady if a request fails."""
    for number in range(count):
        _round(start, asked, number)
        _join(start, asked, number, {})
    asked.compiled()  # what the engine said last is in its timeline then


def _round(start: EngineStart, asked: Rounds, number: int) -> int:
    """Ask the round NUMBER, and return how many requests were answered."""
    # A thread for each request of a step: all are with the engine at the same time.
    with ThreadPoolExecutor(max_workers=asked.batch) as pool:
        return sum(sum(pool.map(lambda request: _ask(start, request), step)) for step in asked.steps(number))


def _join(start: EngineStart, asked: Rounds, number: int, met: dict[str, bool]) -> int:
    """Ask the joint steps of the round NUMBER, say in MET by name which met; return how many requests were answered."""

    def stream(request: Request, more: Callable[[], bool]) -> bool:
        return _allowed(health.stream(start.plan, joint.fields(request), _ANSWER, more), request)

    answered = 0
    for step in asked.joint(number):
        joined = joint.ask(step, stream)
        met[step.name] = met.get(step.name, False) or joined.met
        answered += joined.answered
    return answered


def _ask(start: EngineStart, request: Request) -> bool:
    """Ask REQUEST, and return whether it was answered. Raises NotReady for an error that is not about its settings."""
    return _allowed(health.ask(start.plan, joint.fields(request), _ANSWER), request)


def _allowed(answer: tuple[int, str], request: Request) -> bool:
    status, text = answer
    if status not in {200, _REFUSED}:
        raise NotReady(f"HTTP {status} for a prompt of {len(request.prompt)} tokens: {text[:200]}", final=True)
    return status == 200


def of_tree(claimed: Coverage | None, tree: Tree) -> Coverage | None:
    """Return what another host CLAIMED to have asked, with the kernels that TREE really has."""
    return evidence(Covered(claimed.new, claimed.requests, claimed.unmet), None, tree) if claimed is not None else None


def evidence(covered: Covered, before: Coverage | None, tree: Tree) -> Coverage:
    """Return the evidence of COVERED for the manifest of TREE; BEFORE is that of the blessing that was extended."""
    counts: dict[str, int] = {}
    for file in tree.files:
        directory, _, name = file.path.rpartition("/")
        if name.startswith("__grp__") and name.endswith(".json") and directory:
            kernel = name.removeprefix("__grp__").removesuffix(".json")
            counts[kernel] = counts.get(kernel, 0) + 1
    old, requests = (before.new, before.requests) if before is not None else ((), 0)
    new = tuple(map(sum, itertools.zip_longest(old, covered.new, fillvalue=0)))  # the rounds of BEFORE were asked again
    variants = tuple(KernelVariants(name, count) for name, count in sorted(counts.items()))
    return Coverage(new, requests + covered.requests, variants, covered.unmet)
