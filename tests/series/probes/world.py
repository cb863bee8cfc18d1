"""What the probes stand on: a configuration, caches, requests, and vLLM's manager and scheduler for them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a page of PAGE bytes holds: BLOCK tokens of one attention layer, or the STATES of one Mamba layer."""

    page: int
    block: int
    heads: int
    head_size: int
    states: tuple[tuple[int, ...], ...]
    dtype: torch.dtype


# The conv and the ssm state have 3936 of the 4096 bytes of a page.
SMALL = Layout(4096, block=16, heads=2, head_size=16, states=((3, 200), (2, 12, 16)), dtype=torch.float32)
BLOCK, PAGE = SMALL.block, SMALL.page

PROBES: dict[str, Callable[[], Any]] = {}


def probe(function: Callable[[], Any]) -> Callable[[], Any]:
    PROBES[function.__name__] = function
    return function


def accepted(function: Callable[..., Any], **values: Any) -> dict[str, Any]:
    """Return those of VALUES that FUNCTION takes: the two versions differ in their arguments."""
    if dataclasses.is_dataclass(function):
        known = {field.name for field in dataclasses.fields(function)} | {"max_model_len", "is_encoder_decoder"}
    else:
        known = set(inspect.signature(function).parameters)
    return {name: value for name, value in values.items() if name in known}


def configuration() -> VllmConfig:
    directory = Path(tempfile.mkdtemp())
    (directory / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "max_position_embeddings": 8192,
                "vocab_size": 128,
            }
        )
    )
    model = ModelConfig(model=str(directory), skip_tokenizer_init=True, dtype="float32")
    scheduler = SchedulerConfig(
        **accepted(
            SchedulerConfig,
            max_num_seqs=32,
            max_num_batched_tokens=8192,
            max_model_len=8192,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            watermark=0.0,
        )
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
    return VllmConfig(
        model_config=model, scheduler_config=scheduler, cache_config=cache, device_config=DeviceConfig(device="cpu")
    )


CONFIG = configuration()
if "kv_cache_layout" in {field.name for field in dataclasses.fields(CacheConfig)}:
    CONFIG.cache_config.kv_cache_layout = "LBNHC"  # which the engine's core chooses from 0.32.0 on
# The CPU platform of the older version turns the hybrid cache off; a GPU does not.
CONFIG.scheduler_config.disable_hybrid_kv_cache_manager = False


def attention_spec(layout: Layout = SMALL) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=layout.block, num_kv_heads=layout.heads, head_size=layout.head_size, dtype=layout.dtype
    )


def mamba_spec(mode: str = "none", layout: Layout = SMALL) -> MambaSpec:
    return MambaSpec(
        block_size=layout.block if mode != "none" else 8192,
        shapes=layout.states,
        dtypes=(layout.dtype,) * len(layout.states),
        page_size_padded=layout.page,
        mamba_cache_mode=mode,
    )


def cache_config(groups: list[KVCacheGroupSpec], blocks: int = 200) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def hybrid(mode: str = "none") -> KVCacheConfig:
    return cache_config(
        [KVCacheGroupSpec(["mamba.0"], mamba_spec(mode)), KVCacheGroupSpec(["attn.0"], attention_spec())]
    )


def manager(config: KVCacheConfig) -> KVCacheManager:
    largest = max(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
    return KVCacheManager(
        config,
        max_model_len=8192,
        enable_caching=False,
        **accepted(KVCacheManager.__init__, hash_block_size=BLOCK, scheduler_block_size=largest),
    )


def request(name: str, tokens: int) -> Request:
    kv_cache_utils.init_none_hash(sha256)
    return Request(
        **accepted(
            Request.__init__,
            request_id=name,
            prompt_token_ids=list(range(1, tokens + 1)),
            sampling_params=SamplingParams(max_tokens=4),
            pooling_params=None,
            eos_token_id=2,
            block_hasher=kv_cache_utils.get_request_block_hasher(BLOCK, sha256),
        )
    )


def owned(kv: KVCacheManager, name: str) -> dict[str, list[int]]:
    mamba, attention = (
        [block.block_id for block in one.req_to_blocks[name]] for one in kv.coordinator.single_type_managers
    )
    return {"mamba": mamba, "attention": attention}


def scheduler(config: KVCacheConfig) -> Scheduler:
    CONFIG.cache_config.num_gpu_blocks = config.num_blocks
    largest = max(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
    return Scheduler(
        vllm_config=CONFIG,
        kv_cache_config=config,
        log_stats=False,
        structured_output_manager=StructuredOutputManager(CONFIG),
        **accepted(Scheduler.__init__, block_size=largest, hash_block_size=BLOCK),
    )
