# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A Mamba layer reads its state before it has written all of it. So the worker has
to zero a newly allocated state block, and the cache manager has to name it.
"""

import pytest
import torch

from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.request import Request

BLOCK_SIZE = 16
MAX_MODEL_LEN = 1024
NULL_BLOCK = 0
MAMBA, ATTENTION = 0, 1

both_cache_modes = pytest.mark.parametrize("mode", ["none", "align"])


def attention_group() -> KVCacheGroupSpec:
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=2, head_size=16, dtype=torch.float32
    )
    return KVCacheGroupSpec(["attention"], spec)


def mamba_group(mode: str, speculative_blocks: int) -> KVCacheGroupSpec:
    spec = MambaSpec(
        block_size=MAX_MODEL_LEN if mode == "none" else BLOCK_SIZE,
        shapes=((3, 200), (2, 12, 16)),
        dtypes=(torch.float32, torch.float32),
        page_size_padded=4096,
        mamba_cache_mode=mode,
        num_speculative_blocks=speculative_blocks,
    )
    return KVCacheGroupSpec(["mamba"], spec)


def make_manager(*groups: KVCacheGroupSpec, num_blocks: int = 100) -> KVCacheManager:
    return KVCacheManager(
        KVCacheConfig(num_blocks, kv_cache_tensors=[], kv_cache_groups=list(groups)),
        max_model_len=MAX_MODEL_LEN,
        scheduler_block_size=max(group.kv_cache_spec.block_size for group in groups),
        hash_block_size=BLOCK_SIZE,
        enable_caching=False,
    )


def make_hybrid(
    mode: str, speculative_blocks: int = 0, num_blocks: int = 100
) -> KVCacheManager:
    mamba = mamba_group(mode, speculative_blocks)
    return make_manager(mamba, attention_group(), num_blocks=num_blocks)


def make_request(request_id: str, num_tokens: int = 40) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=list(range(1, num_tokens + 1)),
        sampling_params=SamplingParams(max_tokens=4),
        pooling_params=None,
    )


def blocks_of(manager: KVCacheManager, request_id: str, group: int) -> set[int]:
    return set(manager.get_block_ids(request_id)[group]) - {NULL_BLOCK}


@pytest.mark.parametrize("speculative_blocks", [0, 2])
@both_cache_modes
def test_new_state_blocks_are_to_be_zeroed(mode: str, speculative_blocks: int) -> None:
    manager = make_hybrid(mode, speculative_blocks)
    assert manager.allocate_slots(make_request("a"), 40) is not None
    to_zero = manager.take_new_block_ids()
    assert blocks_of(manager, "a", ATTENTION) <= set(to_zero)
    states = blocks_of(manager, "a", MAMBA)
    assert len(states) == 1 + speculative_blocks
    assert states <= set(to_zero), "state blocks that the worker will not zero"
    assert len(to_zero) == len(set(to_zero))
    assert NULL_BLOCK not in to_zero


@both_cache_modes
def test_recycled_state_block_is_to_be_zeroed(mode: str) -> None:
    # Four blocks and the null block: the second request gets those of the first.
    manager = make_hybrid(mode, num_blocks=5)
    first = make_request("a")
    assert manager.allocate_slots(first, 40) is not None
    manager.take_new_block_ids()
    manager.free(first)
    assert manager.allocate_slots(make_request("b"), 40) is not None
    states = blocks_of(manager, "b", MAMBA)
    assert states
    assert states <= set(manager.take_new_block_ids()), "the state of request a"


def test_state_block_of_a_later_step_is_to_be_zeroed() -> None:
    manager = make_hybrid("align")
    request = make_request("a")
    assert manager.allocate_slots(request, BLOCK_SIZE) is not None
    manager.take_new_block_ids()
    before = blocks_of(manager, "a", MAMBA)
    request.num_computed_tokens = BLOCK_SIZE
    assert manager.allocate_slots(request, BLOCK_SIZE) is not None
    added = blocks_of(manager, "a", MAMBA) - before
    assert added
    assert added <= set(manager.take_new_block_ids()), "the block of the second step"


@both_cache_modes
def test_state_block_that_a_connector_fills_is_not_zeroed(mode: str) -> None:
    manager = make_hybrid(mode)
    new_blocks = manager.allocate_slots(
        make_request("a"), 0, num_external_computed_tokens=32, delay_cache_blocks=True
    )
    assert new_blocks is not None
    states = blocks_of(manager, "a", MAMBA)
    assert states
    assert states.isdisjoint(manager.take_new_block_ids())


def test_nothing_is_to_be_zeroed_without_mamba_layers() -> None:
    manager = make_manager(attention_group())
    assert manager.allocate_slots(make_request("a"), 40) is not None
    assert manager.take_new_block_ids() == []
