"""The worker's memory: buffers and views as vLLM lays them out, under the model runner's own methods."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils import torch_utils
from vllm.v1.core import kv_cache_utils
from vllm.v1.worker import utils
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from world import (
    CONFIG,
    PAGE,
    SMALL,
    Layout,
    attention_spec,
    mamba_spec,
)

# 0.33.0 has moved what lays out the cache.
PLANNING: Any = kv_cache_utils
if not hasattr(kv_cache_utils, "get_kv_cache_groups"):
    PLANNING = importlib.import_module("vllm.v1.core.kv_cache_planning")

POISON = 0x5A

if not torch.cuda.is_available():
    # 0.33.0 pins what it copies where it does not know the platform, and to pin asks for the driver.
    vars(torch_utils).update(PIN_MEMORY=False)


class Backend:
    """Stands in for an attention backend: K and V outermost, as vLLM re-strides it for hybrids."""

    @staticmethod
    def get_kv_cache_shape(
        blocks: int, block: int, heads: int, size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return (2, blocks, block, heads, size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (0, 1, 2, 3, 4)

    @classmethod
    def get_kv_cache_block_dim(cls, block: int, heads: int, size: int, cache_dtype_str: str = "auto") -> int:
        return 1


class MambaLayer:
    """Stands in for a Mamba layer: its cache, bound as the version does it, and no weights."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.kv_cache: Any = None

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return self.layout.states

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (self.layout.dtype,) * len(self.layout.states)

    def bind(self, cache: Any) -> None:
        if isinstance(cache, torch.Tensor):
            from vllm.model_executor.layers.mamba.abstract import MambaBase

            MambaBase.bind_kv_cache(self, cache)
        else:
            self.kv_cache = cache


def sharing(config: Any) -> list[list[str]]:
    """Return the names of the layers that share each buffer of CONFIG, whose layers lie one after the other."""
    tensors = config.kv_cache_tensors
    if hasattr(tensors[0], "shared_by"):
        return [tensor.shared_by for tensor in tensors]
    places: dict[int, list[str]] = {}
    for tensor in tensors:
        for number, name in enumerate(tensor.layers):
            places.setdefault(tensor.offset + number * tensor.layer_stride, []).append(name)
    return [places[place] for place in sorted(places)]


def poisoned(size: int) -> torch.Tensor:
    return torch.full((size,), POISON, dtype=torch.int8)


class Worker:
    """The part of a model runner that owns the cache: buffers, views, and the runner's own methods on them.

    ALLOCATE makes a buffer of so many bytes (int8), on whatever device; from 0.32.0 on vLLM allocates, on the CPU.
    The buffers are the bytes of the layers that lie at one place, one layer of each group.
    """

    def __init__(
        self,
        attention: int,
        mamba: int,
        blocks: int = 12,
        layout: Layout = SMALL,
        allocate: Callable[[int], torch.Tensor] = poisoned,
        mamba_layer: type[MambaLayer] = MambaLayer,
    ) -> None:
        specs: dict[str, Any] = {f"attn.{index}": attention_spec(layout) for index in range(attention)}
        specs |= {f"mamba.{index}": mamba_spec(layout=layout) for index in range(mamba)}
        groups = PLANNING.get_kv_cache_groups(CONFIG, specs)
        pages = max(len(group.layer_names) for group in groups)
        self.config = PLANNING.get_kv_cache_config_from_groups(CONFIG, groups, pages * layout.page * blocks)
        assert self.config.num_blocks == blocks
        self.sharing = sharing(self.config)
        self.buffers = [allocate(layout.page * blocks) for _ in self.sharing]
        self.groups = [
            SimpleNamespace(
                kv_cache_spec=group.kv_cache_spec,
                layer_names=group.layer_names,
                kv_cache_group_id=index,
                backend=Backend,
                kernel_block_stride=0,
            )
            for index, group in enumerate(self.config.kv_cache_groups)
        ]
        self.layers: dict[str, Any] = {}
        self.runner = runner = SimpleNamespace(
            device=self.buffers[0].device,
            pin_memory=self.buffers[0].is_cuda,
            kv_cache_config=self.config,
            cache_config=SimpleNamespace(cache_dtype="auto"),
            runner_only_attn_layers=set(),
            _kernel_block_sizes=[group.kv_cache_spec.block_size for group in groups],
            _kv_cache_spec_attn_group_iterator=lambda: iter(self.groups),
            compilation_config=SimpleNamespace(static_forward_context=self.layers),
            _has_mixed_attention_kv_layout=lambda *_: False,
        )
        for name in ("_update_hybrid_attention_mamba_layout", "_update_hybrid_attention_layout", "_kv_pages"):
            if name in vars(GPUModelRunner):
                setattr(runner, name, getattr(GPUModelRunner, name).__get__(runner))
        if hasattr(utils, "allocate_kv_cache"):
            caches = self._placed(layout, blocks)
        else:
            raw = {name: buffer for names, buffer in zip(self.sharing, self.buffers, strict=True) for name in names}
            caches = GPUModelRunner._reshape_kv_cache_tensors(runner, raw, runner._kernel_block_sizes)
        for name, cache in caches.items():
            if name.startswith("mamba"):
                self.layers[name] = mamba_layer(layout)
                self.layers[name].bind(cache)
            else:
                self.layers[name] = SimpleNamespace(kv_cache=cache)
        GPUModelRunner._init_kv_zero_meta(runner)

    def _placed(self, layout: Layout, blocks: int) -> dict[str, torch.Tensor]:
        """Return the views of all layers in one allocation, as vLLM makes it from 0.32.0 on, and cut buffers of it."""
        kernel_blocks = self.runner._kernel_block_sizes
        chosen = CONFIG.cache_config.get_resolved_kv_cache_layout()
        caches: dict[str, torch.Tensor] = utils.allocate_kv_cache(
            self.config, torch.device("cpu"), chosen, kernel_blocks
        )
        storage = next(iter(caches.values())).untyped_storage()
        whole = torch.empty(0, dtype=torch.int8).set_(storage).fill_(POISON)
        self.buffers = list(whole.split(layout.page * blocks))
        assert len(self.buffers) == len(self.sharing)
        return caches

    def zero(self, ids: list[int]) -> None:
        GPUModelRunner._zero_block_ids(self.runner, ids)

    def zero_states_like_the_fork(self, ids: list[int]) -> None:
        for name, layer in self.layers.items():
            if name.startswith("mamba"):
                for state in layer.kv_cache:
                    state.index_fill_(0, torch.tensor(ids), 0)

    def alone(self) -> int:
        """How many buffers have no attention layer."""
        return sum(not any(name.startswith("attn") for name in names) for names in self.sharing)

    def states(self, block: int) -> list[torch.Tensor]:
        found = (layer for name, layer in self.layers.items() if name.startswith("mamba"))
        return [state[block] for layer in found for state in layer.kv_cache]

    def zeros(self, block: int) -> dict[str, Any]:
        """What is zero in the pages of BLOCK, in all buffers."""
        pages = [buffer.view(-1, PAGE)[block] for buffer in self.buffers]
        return {
            "states": all(bool((state == 0).all()) for state in self.states(block)),
            "bytes": [int((page == 0).sum()) for page in pages],
        }

    def untouched(self, blocks: list[int]) -> bool:
        """Whether every page of every other block holds what it held at first."""
        others = [block for block in range(self.config.num_blocks) if block not in blocks]
        return all(bool((buffer.view(-1, PAGE)[others] == POISON).all()) for buffer in self.buffers)


SHAPES = {"5+15": (5, 15), "10+12": (10, 12), "4+9": (4, 9)}
