"""Rounds of requests to a started engine, until it compiles no more kernels: `core/workload.py` says which requests.

The bootstrap of a bless on a GPU asks them, so that the cache has the kernels that requests need. Each trial asks the
same ones, and must compile nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nvllm.cache.manifest import Coverage, KernelVariants
from nvllm.cache.tree import Tree
from nvllm.core import workload
from nvllm.core.progress import Progress
from nvllm.core.workload import Bounds, Request
from nvllm.serve import health
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
    """The result of rounds: how many kernels were NEW in each, and how many REQUESTS were answered."""

    new: tuple[int, ...]
    requests: int


def bounds(start: EngineStart, arguments: Mapping[str, bool | int | float | str]) -> Bounds:
    """Return the bounds of the engine of START, which has the ARGUMENTS. Raises NotReady if it does not say them."""
    return workload.bounds(arguments, health.longest(start.plan.port))


def until_quiet(start: EngineStart, of: Bounds, first: int, quiet: int, progress: Progress) -> Covered:
    """Ask the engine of START the FIRST rounds, and then more, until QUIET of these in a row needed no new kernel.

    Raises NotReady if a request fails, or if `MOST_ROUNDS` later the engine still compiles.
    """
    new: list[int] = []
    requests = 0
    for number in range(first + MOST_ROUNDS):
        found, asked = _round(start, of, number)
        new.append(found)
        requests += asked
        progress.note(f"round {number + 1}: {asked} requests, {found} new kernels")
        if len(new) >= first + quiet and not any(new[-quiet:]):
            return Covered(tuple(new), requests)
    said = ", ".join(map(str, new))
    raise NotReady(f"{len(new)} rounds of requests, and still new kernels: {said}", final=True)


def again(start: EngineStart, of: Bounds, rounds: int) -> None:
    """Ask the engine of START the first ROUNDS. Raises NotReady if a request fails."""
    for number in range(rounds):
        _round(start, of, number)


def _round(start: EngineStart, of: Bounds, number: int) -> tuple[int, int]:
    """Ask the round NUMBER. Return how many kernels were missing for it, and how many requests were answered."""
    before, answered = len(start.timeline.kernels), 0
    with ThreadPoolExecutor(max_workers=of.batch) as pool:
        for step in workload.steps(of, number):
            answered += sum(pool.map(lambda one: _ask(start, one), step))
    time.sleep(LOG_DELAY)
    start.read_log()
    return len(start.timeline.kernels) - before, answered


def _ask(start: EngineStart, request: Request) -> bool:
    """Ask REQUEST, and return whether it was answered. Raises NotReady for an error that is not about its settings."""
    fields = {"prompt": list(request.prompt), "max_tokens": request.answer, "ignore_eos": True, **request.settings}
    status, text = health.ask(start.plan, fields, _ANSWER)
    if status not in {200, _REFUSED}:
        raise NotReady(f"HTTP {status} for a prompt of {len(request.prompt)} tokens: {text[:200]}", final=True)
    return status == 200


def evidence(found: Covered, before: Coverage | None, tree: Tree) -> Coverage:
    """Return the evidence of FOUND for the manifest of TREE; BEFORE is that of the blessing that was extended."""
    counts: dict[str, int] = {}
    for file in tree.files:
        place, _, name = file.path.rpartition("/")
        if name.startswith("__grp__") and name.endswith(".json") and place:
            kernel = name.removeprefix("__grp__").removesuffix(".json")
            counts[kernel] = counts.get(kernel, 0) + 1
    old, requests = (before.new, before.requests) if before is not None else ((), 0)
    new = tuple(map(sum, itertools.zip_longest(old, found.new, fillvalue=0)))  # the rounds of BEFORE were asked again
    variants = tuple(KernelVariants(name, count) for name, count in sorted(counts.items()))
    return Coverage(new, requests + found.requests, variants)
