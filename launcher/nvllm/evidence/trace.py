"""Traces of an arm by vLLM's own profiler, PyTorch's: which kernels ran, how often, and for how long.

Each is bounded twice: by the requests, and by the steps of the engine after which vLLM ends it. No figure of a load
comes from a leg with a trace, because the profiler slows the engine down; the kernels' own times do.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from nvllm.core import canonical, reading
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.core.spec import Profile
from nvllm.evidence import intervals
from nvllm.evidence.deciding import LEVEL
from nvllm.evidence.load import LoadProbe
from nvllm.evidence.records import KERNELS_SCHEMA, KernelCompared, KernelTable, KernelTime, TracedArm
from nvllm.runtime import kernel_times
from nvllm.serve.startup import EngineStart

_DIRECTORY = "/tmp/nvllm-trace"  # noqa: S108 - in the container, a tmpfs of its own
TRACE = "trace.json.gz"
_KEPT = 100
"""Kernels of a table."""

_ARGUMENTS: Mapping[str, str | int | bool] = MappingProxyType(
    {
        "profiler-config.profiler": "torch",
        "profiler-config.torch_profiler_dir": _DIRECTORY,
        "profiler-config.torch_profiler_with_stack": False,
        "profiler-config.torch_profiler_dump_cuda_time_total": False,
        "profiler-config.ignore_frontend": True,
    }
)


def profiled(profile: Profile, steps: int) -> Profile:
    """Return PROFILE under the profiler for STEPS, for development: with other arguments it has no blessing.

    It loads what PROFILE loads: no argument of the profiler is in the compile key.
    """
    arguments = {**profile.arguments, **_ARGUMENTS, "profiler-config.max_iterations": steps}
    return replace(profile, arguments=arguments, dev=True)


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace adds up to, and the TRACE itself, empty if it was too large."""

    table: KernelTable
    trace: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """A trace that was taken: RUN of ARM, of at most STEPS, while so many REQUESTS were given so many TOKENS.

    TREE is the hash of what its engine loaded; empty if it loaded nothing.
    """

    arm: str
    run: int
    requests: int
    steps: int
    tokens: int
    tree: str = ""


def take(start: EngineStart, load: LoadProbe, arm: str, run: int, steps: int) -> Traced:
    """Put a small part of LOAD on the engine of START, and return what trace RUN of ARM, of STEPS at most, adds up to.

    Half of the steps are for the prompts. Raises Refused NV858 if there is no trace.
    """
    small = replace(load, requests=load.concurrency, length=min(load.length, max(1, steps // 2)))
    (answer,) = small.profiled(start).answers
    problem = answer.problem
    if not problem:
        script = reading.text(Path(kernel_times.__file__), reading.MB)
        # -I: no variable of the engine, and no file where it runs, decides what is imported.
        argv = [start.plan.command.interpreter, "-I", "-c", script, _DIRECTORY]
        status, output = start.engine.run_in(start.container, argv)
        problem = f"exit status {status}: {output[-300:]}" if status else ""
    if not problem:
        try:
            tree = "" if start.cache is None else start.cache.hash
            return read(output, Taken(arm, run, small.requests, steps, answer.tokens, tree))
        except (ValueError, KeyError, TypeError) as error:
            problem = f"{error!r}"
    cure = start.run.log_cure
    raise refuse("NV858", f"arm {arm}", "a trace of PyTorch's profiler with kernels or operators", problem, cure)


def read(text: str, taken: Taken) -> Traced:
    """Return what TEXT, which `runtime.kernel_times` printed, says of what was TAKEN.

    A trace that has all its steps may lack some of the load: then nobody knows how many tokens are in it. Raises
    ValueError, KeyError or TypeError for another form, and ValueError for a trace of nothing.
    """
    document: Any = canonical.decode(text.encode())
    rows = [_time(*row) for row in document["kernels"]]
    if not rows:
        raise ValueError("the trace has no kernel and no operator")
    trace = base64.b64decode(document["trace"], validate=True)
    whole = round(sum(row.microseconds for row in rows), 3)
    on: Literal["gpu", "cpu"] = "gpu" if document["gpu"] else "cpu"
    others = max(0, len(rows) - _KEPT)
    kept, name = tuple(rows[:_KEPT]), TRACE if trace else ""
    tokens = taken.tokens if 0 < document["steps"] < taken.steps else 0
    table = KernelTable(
        schema=KERNELS_SCHEMA,
        arm=taken.arm,
        on=on,
        requests=taken.requests,
        steps=taken.steps,
        microseconds=whole,
        kernels=kept,
        others=others,
        trace=name,
        run=taken.run,
        tokens=tokens,
        tree=taken.tree,
    )
    return Traced(table, trace)


def _time(name: Json, calls: Json, took: Json) -> KernelTime:
    """Return one row of a trace. Raises ValueError for what is none."""
    if not (isinstance(name, str) and name and isinstance(calls, int) and isinstance(took, int | float)):
        raise ValueError(f"no kernel: {str(name)[:80]}")
    if not (0 <= calls <= canonical.EXACT and abs(took) <= canonical.EXACT):
        raise ValueError(f"no times of a kernel: {name[:80]}")
    return KernelTime(name, calls, float(took))


def by_arm(tables: Sequence[KernelTable]) -> dict[str, list[KernelTable]]:
    """Return the traces in TABLES of each arm, by its name."""
    arms: dict[str, list[KernelTable]] = {}
    for table in tables:
        arms.setdefault(table.arm, []).append(table)
    return arms


def together(tables: Sequence[KernelTable]) -> KernelTable:
    """Return what TABLES, the traces of one arm, add up to."""
    kernels: dict[str, KernelTime] = {}
    for kernel in (kernel for table in tables for kernel in table.kernels):
        before = kernels.get(kernel.name, KernelTime(kernel.name, 0, 0.0))
        calls, microseconds = before.calls + kernel.calls, before.microseconds + kernel.microseconds
        kernels[kernel.name] = KernelTime(kernel.name, calls, round(microseconds, 3))
    return replace(
        tables[0],
        requests=sum(table.requests for table in tables),
        microseconds=round(sum(table.microseconds for table in tables), 3),
        kernels=tuple(sorted(kernels.values(), key=lambda kernel: (-kernel.microseconds, kernel.name))),
        others=max(table.others for table in tables),
        trace=tables[0].trace if len(tables) == 1 else "",
        run=len(tables),
        tokens=sum(table.tokens for table in tables) if all(table.tokens for table in tables) else 0,
    )


def per_token(tables: Sequence[KernelTable]) -> Iterator[TracedArm]:
    """Yield the time of the kernels for a token of each arm that has traces in TABLES whose tokens were counted."""
    for arm, traces in by_arm(tables).items():
        runs = tuple(round(table.microseconds / table.tokens / 1000, 6) for table in traces if table.tokens)
        if runs:
            estimate = intervals.mean(runs, LEVEL, 0.0)
            yield TracedArm(arm, runs, round(estimate.value, 6), estimate.low, estimate.high)


def compared(tables: Sequence[KernelTable]) -> tuple[KernelCompared, ...]:
    """Return the kernels that the first of TABLES has in common with each other one, longest first."""
    rows = []
    for other in tables[1:]:
        first = tables[0]
        there = {kernel.name: kernel for kernel in other.kernels}
        for kernel in first.kernels:
            if kernel.name in there:
                pair = (kernel, there[kernel.name])
                rows.append(
                    KernelCompared(
                        kernel.name,
                        first.arm,
                        other.arm,
                        tuple(each.calls for each in pair),
                        tuple(each.microseconds for each in pair),
                        tuple(share(each, table) for each, table in zip(pair, (first, other), strict=True)),
                        pair[1].microseconds / pair[0].microseconds if pair[0].microseconds > 0 else None,
                    )
                )
    return tuple(rows)


def mean(kernel: KernelTime) -> float:
    """Return the mean microseconds of a call of KERNEL."""
    return kernel.microseconds / kernel.calls if kernel.calls else 0.0


def share(kernel: KernelTime, table: KernelTable) -> float:
    """Return the share of KERNEL in all time of TABLE."""
    return kernel.microseconds / table.microseconds if table.microseconds else 0.0
