# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""KVBlockZeroer has to zero the page of a block in every buffer of a hybrid model: also
where only Mamba layers use the buffer, and where a Mamba page is the larger one.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.triton_utils import HAS_TRITON
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec
from vllm.v1.worker.utils import AttentionGroup, KVBlockZeroer

# Without a GPU: TRITON_INTERPRET=1.
pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="zeroing is a Triton kernel")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS = 8, 16, 2
PAGE = 4096  # bytes; the two states of a layer have 3936 of them
STATES = ((3, 200), (2, 12, 16))
OLD = 0x5A


def make_buffer() -> torch.Tensor:
    """The memory of a cache that was in use, one row a page."""
    return torch.full((NUM_BLOCKS, PAGE), OLD, dtype=torch.int8, device=DEVICE)


def mamba_layer(buffer: torch.Tensor) -> SimpleNamespace:
    layer = SimpleNamespace(
        get_state_shape=lambda: STATES,
        get_state_dtype=lambda: (torch.float32,) * len(STATES),
    )
    MambaBase.bind_kv_cache(layer, buffer.view(NUM_BLOCKS, 1, 1, PAGE))
    return layer


def attention_layer(buffer: torch.Tensor, head_size: int) -> SimpleNamespace:
    """Keys and values of a page from its first byte on; the rest is padding."""
    shape = TritonAttentionBackend.get_kv_cache_shape(
        NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS, head_size
    )
    assert shape[0] == NUM_BLOCKS
    size = torch.Size(shape[1:]).numel()
    pages = buffer.view(torch.float32)[:, :size]
    return SimpleNamespace(kv_cache=pages.unflatten(1, shape[1:]))


def make_zeroer(
    attention: dict[str, SimpleNamespace],
    mamba: dict[str, SimpleNamespace],
    head_size: int = 16,
) -> KVBlockZeroer:
    attention_spec = FullAttentionSpec(
        block_size=BLOCK_SIZE,
        num_kv_heads=NUM_HEADS,
        head_size=head_size,
        dtype=torch.float32,
        page_size_padded=PAGE,
    )
    mamba_spec = MambaSpec(
        block_size=1024,
        shapes=STATES,
        dtypes=(torch.float32,) * len(STATES),
        page_size_padded=PAGE,
    )
    # No code of a Mamba backend is needed here.
    backends: list[Any] = [TritonAttentionBackend, None]
    layers = [(attention, attention_spec), (mamba, mamba_spec)]
    groups = [
        AttentionGroup(backend, list(named), spec, kv_cache_group_id=index)
        for index, (backend, (named, spec)) in enumerate(
            zip(backends, layers, strict=True)
        )
        if named
    ]
    return KVBlockZeroer(
        DEVICE, iter(groups), [BLOCK_SIZE, 1024], "auto", {**attention, **mamba}
    )


def assert_zeroed(layer: SimpleNamespace, blocks: list[int]) -> None:
    for state in layer.kv_cache:
        kept = [int(state[block].count_nonzero()) for block in blocks]
        assert kept == [0] * len(blocks), "a state of the last owner of a block"


def assert_kept(buffer: torch.Tensor, zeroed: list[int]) -> None:
    others = [block for block in range(NUM_BLOCKS) if block not in zeroed]
    assert bool((buffer[others] == OLD).all())


def test_page_that_attention_shares_is_zeroed() -> None:
    buffer = make_buffer()
    mamba = mamba_layer(buffer)
    attention = attention_layer(buffer, head_size=16)
    make_zeroer({"attention": attention}, {"mamba": mamba}).zero_block_ids([2, 5])
    assert_zeroed(mamba, [2, 5])
    assert_kept(buffer, [2, 5])


def test_page_of_a_buffer_without_attention_is_zeroed() -> None:
    # With more Mamba layers than attention layers in a group, some buffers have
    # Mamba layers only.
    shared, alone = make_buffer(), make_buffer()
    mamba = {"mamba.0": mamba_layer(shared), "mamba.1": mamba_layer(alone)}
    attention = {"attention": attention_layer(shared, head_size=16)}
    make_zeroer(attention, mamba).zero_block_ids([2, 5])
    for name, buffer in (("mamba.0", shared), ("mamba.1", alone)):
        assert_zeroed(mamba[name], [2, 5])
        assert_kept(buffer, [2, 5])


def test_page_without_any_attention_layer_is_zeroed() -> None:
    buffer = make_buffer()
    mamba = mamba_layer(buffer)
    make_zeroer({}, {"mamba": mamba}).zero_block_ids([2, 5])
    assert_zeroed(mamba, [2, 5])
    assert_kept(buffer, [2, 5])


def test_state_behind_a_smaller_attention_page_is_zeroed() -> None:
    buffer = make_buffer()
    mamba = mamba_layer(buffer)
    attention = attention_layer(buffer, head_size=8)
    zeroer = make_zeroer({"attention": attention}, {"mamba": mamba}, head_size=8)
    zeroer.zero_block_ids([2, 5])
    assert_zeroed(mamba, [2, 5])
    assert_kept(buffer, [2, 5])
