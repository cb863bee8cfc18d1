"""The second of vLLM's model runners for GPUs, which it takes for some architectures: what of a cache a step clears."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from memory import SHAPES, Worker
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from world import probe


def runner_of(worker: Worker) -> Any:
    """The part of that runner that clears, on the memory of WORKER. It has no requests."""
    nothing = np.zeros(1, dtype=np.int32)
    return SimpleNamespace(
        device=worker.runner.device,
        attn_groups=[[group] for group in worker.groups],
        kernel_block_sizes=worker.runner._kernel_block_sizes,
        cache_config=worker.runner.cache_config,
        compilation_config=worker.runner.compilation_config,
        kv_cache_config=worker.config,
        kv_block_zeroer=None,
        req_states=SimpleNamespace(
            num_computed_tokens_np=nothing,
            prefill_len=SimpleNamespace(np=nothing),
            num_computed_prefill_tokens=nothing,
            req_id_to_index={},
        ),
    )


@probe
def cleared_by_the_second_runner() -> Any:
    """What a step clears that is told of block 5 (attention's) and block 9 (Mamba's); None if it has no zeroer."""
    if not hasattr(GPUModelRunner, "_init_kv_zero_meta"):
        return None
    found = {}
    for name, (attention, mamba) in SHAPES.items():
        worker = Worker(attention, mamba)
        runner = runner_of(worker)
        GPUModelRunner._init_kv_zero_meta(runner)
        output = SimpleNamespace(
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[]),
            new_block_ids_to_zero=[5, 9],
            stale_block_ids=[],  # the series' own, of the patch `poison`
            kv_cache_block_copies=None,
        )
        GPUModelRunner.update_requests(runner, output)
        found[name] = {
            "zeros": [worker.zeros(5), worker.zeros(9)],
            "untouched": worker.untouched([5, 9]),
        }
    return found
