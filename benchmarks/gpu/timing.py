"""Time the contenders: `python -m benchmarks.gpu.timing REPETITIONS`; patched tree and `upstream_zeroer` on the path.

Prints one line of JSON: figures by shape, contender, number of blocks and kind, and what they were taken on. The
contenders take turns within each repetition, each time in another order, every call with other ids.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import torch
import triton
from benchmarks.gpu import hybrid
from benchmarks.gpu.contenders import Contender, contenders
from benchmarks.gpu.hybrid import Hybrid, random_ids
from benchmarks.gpu.shapes import COUNTS, SHAPES
from benchmarks.gpu.table import EVERY, FORK, Figure, figure

BLOCKS = 600
WARM_UP = 20
DELAY = {FORK: 4_000_000, EVERY: 8_000_000}
"""Clock cycles that the GPU is kept busy while the host queues a call, by contender: longer than that takes."""
USUAL_DELAY = 1_000_000

Samples = dict[str, list[float]]


class NotQueuedError(Exception):
    """The GPU was idle before the host had queued the call, so what was measured is no queued call."""


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


def queued(contender: Contender, ids: list[int], samples: Samples) -> None:
    """Time one call that waits in the stream behind other work.

    :raises NotQueuedError: when the other work ended too early.
    """
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(DELAY.get(contender.name, USUAL_DELAY))
    begin.record()
    contender.call(ids)
    end.record()
    if begin.query():
        raise NotQueuedError(f"{contender.name}, {len(ids)} blocks")
    end.synchronize()
    samples["queued"].append(begin.elapsed_time(end) * 1e3)


def checked(cache: Hybrid, ours: list[Contender]) -> None:
    """Make sure that each contender clears what it says, before anything is timed."""
    ids = random_ids(random.Random(3), cache.blocks, 16)
    for contender in ours:
        if contender.owned is not None:
            cache.poison()
            contender.call(ids)
            assert cache.wrong(ids, contender.owned) == 0, contender.name


def timings(cache: Hybrid, repetitions: int) -> dict[str, dict[int, dict[str, Figure]]]:
    rng = random.Random(4)
    present = contenders(cache)
    checked(cache, present)
    found: dict[str, dict[int, dict[str, Figure]]] = {each.name: {} for each in present}
    for count in COUNTS:
        samples: dict[str, Samples] = {each.name: defaultdict(list) for each in present}
        gc.collect()
        gc.disable()
        for repetition in range(-WARM_UP, repetitions):
            for contender in rng.sample(present, len(present)):
                kept = samples[contender.name] if repetition >= 0 else defaultdict(list)
                alone(contender, random_ids(rng, cache.blocks, count), kept)
                if repetition >= -1:
                    queued(contender, random_ids(rng, cache.blocks, count), kept)
        gc.enable()
        for name, kinds in samples.items():
            found[name][count] = {kind: figure(values) for kind, values in kinds.items()}
    return found


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
    shapes = {}
    for shape in SHAPES:
        cache = Hybrid(shape, BLOCKS, device)
        found = timings(cache, repetitions)
        shapes[shape.name] = {
            name: {count: {kind: asdict(one) for kind, one in kinds.items()} for count, kinds in by.items()}
            for name, by in found.items()
        }
        del cache
        torch.cuda.empty_cache()
    print(json.dumps({"environment": environment(), "timings": shapes}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
