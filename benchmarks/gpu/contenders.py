"""What is timed side by side: every contender clears the same ids of one cache, or as many bytes elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from benchmarks.gpu.hybrid import Call, Hybrid
from benchmarks.gpu.reference import Range
from benchmarks.gpu.table import EVERY, FILL, FORK, MEMSET, OURS, ROW, UPSTREAM


@dataclass(frozen=True, slots=True)
class Contender:
    """NAME clears the pages of ids with CALL: the bytes OWNED of each buffer's pages, or other bytes if None."""

    name: str
    call: Call
    owned: list[list[Range]] | None


def contenders(cache: Hybrid) -> list[Contender]:
    """Return all of them on CACHE, whose device is a GPU."""
    attended = [ranges if shared else [] for ranges, shared in zip(cache.owned, cache.attended(), strict=True)]
    clear: Call = cache.worker.runner._kv_block_zeroer.zero_block_ids

    def row(ids: list[int]) -> None:
        first = min(ids[0], cache.blocks - len(ids))
        clear(list(range(first, first + len(ids))))

    memset, fill = contiguous(cache)
    return [
        Contender(OURS, clear, cache.owned),
        Contender(ROW, row, None),
        Contender(MEMSET, memset, None),
        Contender(FILL, fill, None),
        Contender(FORK, fork(cache, distinct(cache.states())), cache.owned),
        Contender(EVERY, fork(cache, cache.states()), cache.owned),
        Contender(UPSTREAM, upstream(cache), attended),
    ]


def contiguous(cache: Hybrid) -> tuple[Call, Call]:
    """Return memset and fill of as many bytes as a call clears, in one piece at another place of a pool each time."""
    page = sum(stop - start for ranges in cache.owned for start, stop in ranges)
    pool = torch.empty(cache.blocks * page, dtype=torch.uint8, device=cache.device)
    words = pool.view(torch.float32)
    driver = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
    driver.argtypes = (ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)
    address = pool.data_ptr()

    def start(ids: list[int]) -> int:
        return ids[0] * page if (ids[0] + len(ids)) <= cache.blocks else 0

    def memset(ids: list[int]) -> None:
        status = driver(address + start(ids), 0, len(ids) * page, torch.cuda.current_stream().cuda_stream)
        assert status == 0, status

    def fill(ids: list[int]) -> None:
        first = start(ids) // 4
        words[first : first + len(ids) * page // 4].zero_()

    return memset, fill


def distinct(states: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return one of those STATES that begin at one address: the fork takes the others for the same tensor."""
    return list({state.data_ptr(): state for state in states}.values())


def fork(cache: Hybrid, states: Sequence[torch.Tensor]) -> Call:
    """Return the fork's way, for STATES: each by itself, then vLLM 0.21.0's own kernel for the pages of attention.

    For each tensor the fork compares the ids with its length on the host, copies them to the GPU, and fills.
    """
    from vllm.v1.worker.utils import KVBlockZeroer

    runner = cache.worker.runner
    zeroer = KVBlockZeroer(cache.device, runner.pin_memory)
    zeroer.init_meta(
        attn_groups_iter=iter(cache.worker.groups),
        kernel_block_sizes=runner._kernel_block_sizes,
        cache_dtype="auto",
        runner_only_attn_layers=set(),
        static_forward_context=cache.layers,
    )

    def call(ids: list[int]) -> None:
        every = torch.tensor(ids)
        for state in states:
            inside = (every >= 0) & (every < len(state))
            chosen = every if inside.all() else every[inside]
            state.index_fill_(0, chosen.to(cache.device, non_blocking=True), 0)
        zeroer.zero_block_ids(ids)

    return call


def upstream(cache: Hybrid) -> Call:
    """Return the zeroer of vLLM 0.28.0, whose source is on the path as `upstream_zeroer`."""
    from upstream_zeroer import KVBlockZeroer

    zeroer = KVBlockZeroer(
        cache.device, iter(cache.worker.groups), cache.worker.runner._kernel_block_sizes, "auto", cache.layers, set()
    )
    call: Callable[[list[int]], None] = zeroer.zero_block_ids
    return call
