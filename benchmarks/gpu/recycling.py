"""From vLLM's scheduler to the GPU's memory: `python -m benchmarks.gpu.recycling DEVICE`, a tree on the path.

A request runs, leaves its state, and ends. Others come until one is given only blocks of theirs. What its memory holds
before the model would run is the question: zeros, or what the other request left. Prints one line of JSON for the
tree, stock or patched; for a stock tree also what the fork's way comes to, which clears Mamba's tensors by the same
ids.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence

import torch
from benchmarks.gpu import hybrid
from benchmarks.gpu.hybrid import Hybrid
from benchmarks.gpu.shapes import SHAPES, TINY, Shape
from benchmarks.gpu.table import STATES

BLOCKS = 24
LEFT, RUNNING = 0x3C, 0x3D
"""Every byte of the blocks of a request that ended, and of the one that runs throughout."""


class Engine:
    """vLLM's scheduler and cache manager over the cache of SHAPE, and the step of a model runner that clears pages."""

    def __init__(self, shape: Shape, device: torch.device, *, fork: bool) -> None:
        from world import scheduler

        self.cache = Hybrid(shape, BLOCKS, device)
        self.fork = fork
        self.tokens = 2 * shape.tokens + shape.tokens // 2  # three blocks of attention, one of Mamba
        self.scheduler = scheduler(self.cache.worker.config)
        self.names = (f"request {number}" for number in range(BLOCKS * 8))

    def step(self) -> str:
        """Add a request, schedule it, clear what the step says, and return its name."""
        from world import request

        name = next(self.names)
        self.scheduler.add_request(request(name, self.tokens))
        output = self.scheduler.schedule()
        assert name in output.num_scheduled_tokens
        if ids := output.new_block_ids_to_zero:
            self.cache.worker.zero(ids)
            if self.fork:
                for state in self.cache.states():
                    state.index_fill_(0, torch.tensor(ids, device=state.device), 0)
        return name

    def end(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def readable(self, name: str) -> dict[str, list[torch.Tensor]]:
        """Return what the layers of the model read in the blocks of a request, by kind, as bytes."""
        cache, page = self.cache, self.cache.shape.page
        buffers = {
            layer: buffer
            for tensor, buffer in zip(cache.worker.config.kv_cache_tensors, cache.worker.buffers, strict=True)
            for layer in tensor.shared_by
        }
        tensors: dict[str, list[torch.Tensor]] = {"attention": [], "mamba": []}
        for kind, layers, blocks in self.owned(name):
            for layer in layers:
                for block in blocks:
                    if kind == "attention":
                        tensors[kind].append(buffers[layer][block * page : (block + 1) * page])
                    else:
                        tensors[kind] += [
                            state[block].view(-1).view(torch.int8) for state in cache.layers[layer].kv_cache
                        ]
        return tensors

    def owned(self, name: str) -> Iterator[tuple[str, list[str], set[int]]]:
        """Yield of each group its kind, its layers, and the blocks of a request in it, without the null block."""
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        for group, manager in zip(self.cache.worker.config.kv_cache_groups, managers, strict=True):
            kind = "mamba" if group.layer_names[0].startswith("mamba") else "attention"
            yield kind, group.layer_names, {each.block_id for each in manager.req_to_blocks[name] if not each.is_null}

    def blocks(self, name: str) -> set[int]:
        return set().union(*(blocks for _, _, blocks in self.owned(name)))

    def fill(self, name: str, value: int) -> None:
        """Leave VALUE in every byte that the request NAME reads."""
        for tensors in self.readable(name).values():
            for tensor in tensors:
                tensor.fill_(value)


def differing(tensors: Sequence[torch.Tensor], value: int) -> dict[str, int]:
    """Return how many bytes of TENSORS are not VALUE, and how many there are."""
    return {
        "wrong": sum(int((tensor != value).sum()) for tensor in tensors),
        "bytes": sum(tensor.numel() for tensor in tensors),
    }


def recycled(shape: Shape, device: torch.device, *, fork: bool) -> dict[str, dict[str, int]]:
    """Return what the first request finds in its blocks that is given none but used ones."""
    engine = Engine(shape, device, fork=fork)
    keeper = engine.step()
    engine.fill(keeper, RUNNING)
    used: set[int] = set()
    while not engine.blocks(name := engine.step()) <= used:
        engine.fill(name, LEFT)
        used |= engine.blocks(name)
        engine.end(name)
    reused, kept = engine.readable(name), engine.readable(keeper)
    return {
        STATES: differing(reused["mamba"], 0),
        "pages of attention that are not zero": differing(reused["attention"], 0),
        "changed of the request that runs": differing(kept["mamba"] + kept["attention"], RUNNING),
    }


def main(name: str) -> None:
    device = torch.device(name)
    patched = importlib.util.find_spec("vllm.nvllm") is not None
    if patched:
        hybrid.switch_on()
    arms = {"patched": False} if patched else {"stock": False, "fork": True}
    result = {
        shape.name: {arm: recycled(shape, device, fork=fork) for arm, fork in arms.items()}
        for shape in (SHAPES if device.type == "cuda" else TINY)
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
