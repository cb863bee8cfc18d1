"""Time the contenders: `python -m benchmarks.gpu.timing REPETITIONS`; patched tree and `upstream_zeroer` on the path.

Prints lines of JSON, each with all before it: figures by shape, contender, number of blocks and kind, and what they
were taken on. The contenders take turns within each repetition, each time in another order, every call with other ids.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import triton
from benchmarks.gpu import hybrid
from benchmarks.gpu.contenders import Contender, contenders
from benchmarks.gpu.delay import Delay
from benchmarks.gpu.hybrid import Hybrid, random_ids
from benchmarks.gpu.shapes import COUNTS, SHAPES
from benchmarks.gpu.table import Figure, figure

BLOCKS = 600
WARM_UP = 20

Samples = dict[str, list[float]]


def clock() -> float:
    """Return how many cycles of `torch.cuda._sleep` the GPU takes for a microsecond."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    cycles = 20_000_000
    torch.cuda._sleep(cycles)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return float(cycles / (begin.elapsed_time(end) * 1e3))


def alone(contender: Contender, ids: list[int], samples: Samples) -> None:
    """Time one call on an idle GPU: events around it, and the host's clock."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    started = time.perf_counter_ns()
    contender.call(ids)
    host = time.perf_counter_ns() - started
    end.record()
    end.synchronize()
    samples["alone"].append(begin.elapsed_time(end) * 1e3)
    samples["host"].append(host / 1e3)


def queued(contender: Contender, ids: list[int], samples: Samples, busy: int) -> bool:
    """Time one call that waits in the stream behind BUSY cycles of other work; return whether that was long enough.

    If the other work ended before the host had queued the call, what was measured is no queued call, and is not kept.
    """
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(busy)
    begin.record()
    contender.call(ids)
    end.record()
    waited = not begin.query()
    end.synchronize()
    if waited:
        samples["queued"].append(begin.elapsed_time(end) * 1e3)
    return waited


def checked(cache: Hybrid, present: list[Contender]) -> None:
    """Make sure that each contender clears what it says, before anything is timed."""
    ids = random_ids(random.Random(3), cache.blocks, 16)
    for contender in present:
        if contender.owned is not None:
            cache.poison()
            contender.call(ids)
            assert cache.wrong(ids, contender.owned) == 0, contender.name


def timings(cache: Hybrid, repetitions: int, say: Callable[[int, dict[str, dict[str, Figure]]], None]) -> None:
    """Time the contenders, and SAY for each number of blocks what they came to: figures by contender and kind."""
    rng = random.Random(4)
    present = contenders(cache)
    checked(cache, present)
    per_us = clock()
    for count in COUNTS:
        delay = Delay(per_us)
        samples: dict[str, Samples] = {each.name: defaultdict(list) for each in present}
        warm: dict[str, Samples] = {each.name: defaultdict(list) for each in present}
        gc.collect()
        gc.disable()
        for repetition in range(-WARM_UP, repetitions):
            for contender in rng.sample(present, len(present)):
                name = contender.name
                kept = samples[name] if repetition >= 0 else warm[name]
                alone(contender, random_ids(rng, cache.blocks, count), kept)
                if repetition < -1:
                    continue
                ids = random_ids(rng, cache.blocks, count)
                while not queued(contender, ids, kept, delay.cycles(name, warm[name]["host"][-5:])):
                    if not delay.lengthen(name):
                        break
        gc.enable()
        say(
            count,
            {name: {kind: figure(kept) for kind, kept in by.items() if len(kept) > 1} for name, by in samples.items()},
        )


def environment() -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "memory": torch.cuda.get_device_properties(0).total_memory,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def main(repetitions: int) -> None:
    hybrid.switch_on()
    device = torch.device("cuda", torch.cuda.current_device())
    shapes: dict[str, dict[str, dict[int, Any]]] = {}
    for shape in SHAPES:
        cache = Hybrid(shape, BLOCKS, device)
        measured = shapes.setdefault(shape.name, {})

        def say(
            count: int, figures: dict[str, dict[str, Figure]], measured: dict[str, dict[int, Any]] = measured
        ) -> None:
            for name, kinds in figures.items():
                measured.setdefault(name, {})[count] = {kind: asdict(figure) for kind, figure in kinds.items()}
            print(json.dumps({"environment": environment(), "timings": shapes}), flush=True)

        timings(cache, repetitions, say)
        del cache
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(int(sys.argv[1]))
