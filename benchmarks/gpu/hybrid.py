"""A hybrid cache as vLLM 0.21.0 lays it out, on a GPU or the CPU, under the model runner's own methods.

The classes are vLLM's; what stands in for attention backends and layers is what the tests of the series use, in
tests/series/probes. This is the first module that a script imports: it says which platform vLLM is on.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import vllm.platforms

# The source tree has no compiled extension, without which the module of the CUDA platform cannot be imported.
# Nothing here asks the platform for anything.
vllm.platforms.current_platform = vllm.platforms.interface.UnspecifiedPlatform()
from vllm.model_executor.models import registry  # noqa: E402

# vLLM asks what a model is in a process of its own, which would look for the platform again: with vLLM's metadata on
# the path it finds CUDA, and dies of the extension. Here the question is answered in this process.
registry._run_in_subprocess = lambda function: function()
logging.getLogger("vllm").setLevel(logging.ERROR)

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/series/probes"))

from benchmarks.gpu import reference  # noqa: E402
from benchmarks.gpu.shapes import Shape  # noqa: E402

GUARD = 1 << 16
"""Bytes before and after each buffer, which nobody may touch."""

_SWITCHED = ("page-zeroer", "mamba-block-ids", "gdn-first-chunk")


def switch_on() -> None:
    """Put the sentinels of the series where its switches look: to be called before a patched module is imported."""
    from vllm.nvllm import switches

    directory = Path(tempfile.mkdtemp(prefix="nvllm-sentinels-"))
    for name in _SWITCHED:
        (directory / name).touch()
    switches.DIRECTORY = str(directory)


class Hybrid:
    """The cache of SHAPE in BLOCKS blocks on DEVICE, every byte of it poison that is not zero."""

    def __init__(self, shape: Shape, blocks: int, device: torch.device) -> None:
        from memory import Worker
        from world import Layout

        self.shape, self.blocks, self.device = shape, blocks, device
        self.allocations: list[torch.Tensor] = []
        layout = Layout(shape.page, shape.tokens, shape.heads, shape.head_size, shape.states, torch.bfloat16)
        self.worker = Worker(shape.attention, shape.mamba, blocks, layout, self._allocate)
        self.layers: dict[str, Any] = self.worker.layers
        self.owned = [self._owned(index) for index in range(len(self.worker.buffers))]

    def _allocate(self, size: int) -> torch.Tensor:
        whole = torch.empty(size + 2 * GUARD, dtype=torch.uint8, device=self.device)
        self.allocations.append(whole)
        poison(whole, len(self.allocations))
        # Through DLPack: vLLM counts a state's offset from the start of the storage, and a slice keeps the storage.
        return torch.from_dlpack(whole[GUARD : GUARD + size].view(torch.int8))

    def _owned(self, index: int) -> list[reference.Range]:
        """Return the bytes of a page of a buffer that its layers own, from vLLM's views of it."""
        base, page = self.worker.buffers[index].data_ptr(), self.shape.page
        ranges = []
        for name in self.worker.config.kv_cache_tensors[index].shared_by:
            cache = self.layers[name].kv_cache
            if isinstance(cache, torch.Tensor):
                ranges.append((0, page))
                continue
            for state in cache:
                assert state.stride(0) * state.element_size() == page
                assert state[0].is_contiguous()
                start = state.data_ptr() - base
                assert 0 <= start < page
                ranges.append((start, start + state[0].numel() * state.element_size()))
        return reference.joined(ranges)

    def states(self) -> list[torch.Tensor]:
        """Return every state tensor of every Mamba layer."""
        return [state for name, layer in self.layers.items() if name.startswith("mamba") for state in layer.kv_cache]

    def attended(self) -> list[bool]:
        """Return of each buffer whether an attention layer shares it."""
        tensors = self.worker.config.kv_cache_tensors
        return [any(name.startswith("attn") for name in tensor.shared_by) for tensor in tensors]

    def poison(self) -> None:
        for index, whole in enumerate(self.allocations):
            poison(whole, index + 1)

    def wrong(self, ids: Sequence[int], owned: Sequence[Sequence[reference.Range]]) -> int:
        """Return how many bytes differ from a poisoned cache in which OWNED bytes of each buffer's IDS are cleared."""
        return sum(
            wrong_bytes(whole, index + 1, reference.cleared(self.shape.page, ranges, ids))
            for index, (whole, ranges) in enumerate(zip(self.allocations, owned, strict=True))
        )


def poison(tensor: torch.Tensor, seed: int) -> None:
    """Fill TENSOR (uint8) with random bytes from SEED, none of which is zero."""
    generator = torch.Generator(device=tensor.device).manual_seed(seed)
    tensor.random_(1, 256, generator=generator)


def wrong_bytes(whole: torch.Tensor, seed: int, cleared: Sequence[reference.Range]) -> int:
    """Return how many bytes of WHOLE, a guarded buffer that was poisoned with SEED, are not as CLEARED says."""
    want = torch.empty_like(whole)
    poison(want, seed)
    for start, stop in cleared:
        want[GUARD + start : GUARD + stop] = 0
    return int((whole != want).sum())


def random_ids(rng: random.Random, blocks: int, count: int) -> list[int]:
    """Return COUNT different ids of BLOCKS, without the null block 0, which nobody clears."""
    return rng.sample(range(1, blocks), count)


Call = Callable[[list[int]], None]
