"""A trace of an arm by vLLM's own profiler, PyTorch's: which kernels ran, how often, and for how long.

It is bounded twice: by the requests, and by the steps of the engine after which vLLM ends it. No figure of a bench
comes from a leg with a trace, because the profiler slows the engine down.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from nvllm.core import canonical, reading
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.core.spec import Profile
from nvllm.evidence.load import LoadProbe
from nvllm.evidence.records import KERNELS_SCHEMA, KernelCompared, KernelTable, KernelTime
from nvllm.runtime import kernel_times
from nvllm.serve.startup import EngineStart

_DIRECTORY = "/tmp/nvllm-trace"  # noqa: S108 - in the container, a tmpfs of its own
TRACE = "trace.json.gz"
STEPS = 32
"""Steps of the engine in a trace."""
_TOKENS = 16
_KEPT = 100
"""Kernels of a table."""

_ARGUMENTS: Mapping[str, str | int | bool] = MappingProxyType(
    {
        "profiler-config.profiler": "torch",
        "profiler-config.torch_profiler_dir": _DIRECTORY,
        "profiler-config.torch_profiler_with_stack": False,
        "profiler-config.torch_profiler_dump_cuda_time_total": False,
        "profiler-config.ignore_frontend": True,
        "profiler-config.max_iterations": STEPS,
    }
)


def profiled(profile: Profile) -> Profile:
    """Return PROFILE under the profiler, for development: with other arguments it has no blessing."""
    return replace(profile, arguments={**profile.arguments, **_ARGUMENTS}, dev=True, blessed=False)


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace adds up to, and the TRACE itself, empty if it was too large."""

    table: KernelTable
    trace: bytes


def take(start: EngineStart, load: LoadProbe, arm: str) -> Traced:
    """Put a small part of LOAD on the engine of START, and return what its trace adds up to.

    Raises Refused NV858 if there is no trace.
    """
    small = replace(load, requests=load.concurrency, length=min(load.length, _TOKENS))
    status, output = start.engine.run_in(start.container, [*small.command(start.plan, 0), "--profile"])
    problem = f"vllm bench serve: exit status {status}: {output[-300:]}"
    if status == 0:
        script = reading.text(Path(kernel_times.__file__), reading.MB)
        argv = [start.plan.command.interpreter, "-I", "-c", script, _DIRECTORY]
        status, output = start.engine.run_in(start.container, argv)
        problem = f"exit status {status}: {output[-300:]}" if status else ""
    if not problem:
        try:
            return read(output, arm, small.requests)
        except (ValueError, KeyError, TypeError) as error:
            problem = f"{error!r}"
    cure = f"less {shlex.quote(str(start.run.log))}"
    raise refuse("NV858", f"arm {arm}", "a trace of PyTorch's profiler with kernels or operators", problem, cure)


def read(text: str, arm: str, requests: int) -> Traced:
    """Return what TEXT, which `runtime.kernel_times` printed, says of ARM.

    Raises ValueError, KeyError or TypeError for another form, and ValueError for a trace of nothing.
    """
    document: Any = canonical.decode(text.encode())
    rows = [_time(*row) for row in document["kernels"]]
    if not rows:
        raise ValueError("the trace has no kernel and no operator")
    trace = base64.b64decode(document["trace"], validate=True)
    whole = round(sum(one.microseconds for one in rows), 3)
    on: Literal["gpu", "cpu"] = "gpu" if document["gpu"] else "cpu"
    others = max(0, len(rows) - _KEPT)
    kept, name = tuple(rows[:_KEPT]), TRACE if trace else ""
    return Traced(KernelTable(KERNELS_SCHEMA, arm, on, requests, STEPS, whole, kept, others, name), trace)


def _time(name: Json, calls: Json, took: Json) -> KernelTime:
    """Return one row of a trace. Raises ValueError for what is none."""
    if not (isinstance(name, str) and name and isinstance(calls, int) and isinstance(took, int | float)):
        raise ValueError(f"no kernel: {str(name)[:80]}")
    if not (0 <= calls <= canonical.EXACT and abs(took) <= canonical.EXACT):
        raise ValueError(f"no times of a kernel: {name[:80]}")
    return KernelTime(name, calls, float(took))


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


def share(kernel: KernelTime, table: KernelTable) -> float:
    """Return the share of KERNEL in all time of TABLE."""
    return kernel.microseconds / table.microseconds if table.microseconds else 0.0
