"""What an engine of the probes runs on: arguments that differ between the CPU and a GPU."""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms import current_platform


def name() -> str:
    """Return what the engine runs on: the GPU by name, or ``cpu``."""
    return str(torch.cuda.get_device_name()) if current_platform.is_cuda() else "cpu"


def arguments(blocks: int, *, compiled: bool = False) -> dict[str, Any]:
    """Return arguments of `LLM`: BLOCKS of cache on a GPU, few enough to come back soon; COMPILED there, if wanted."""
    if not current_platform.is_cuda():  # the pool of the version that runs on a CPU hands out used blocks first
        return {"kv_cache_memory_bytes": 8 << 20, "enforce_eager": True}
    return {
        "additional_config": {"gdn_prefill_backend": "triton"},
        "enforce_eager": not compiled,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": 64 << 20,
        "num_gpu_blocks_override": blocks,
    }


def rounds() -> int:
    """Return how often the prompts are asked: on a GPU until all blocks have been somebody's."""
    return 6 if current_platform.is_cuda() else 1
