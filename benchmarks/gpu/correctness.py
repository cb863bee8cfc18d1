"""Byte equality on poisoned buffers: `python -m benchmarks.gpu.correctness DEVICE`, the patched tree on the path.

Prints one line of JSON: the number of wrong bytes of every case. Wrong is a byte of a named page that is not zero, and
any other byte, of pages that were not named, of padding, and of the guards around a buffer, that is not what it was.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence

import torch
from benchmarks.gpu import hybrid
from benchmarks.gpu.hybrid import GUARD, Hybrid, poison, wrong_bytes
from benchmarks.gpu.reference import ODD_LAYOUTS, Range, cleared, id_lists
from benchmarks.gpu.shapes import SHAPES, TINY, Shape

Found = dict[str, int]


def of_models(shapes: Sequence[Shape], blocks: int, device: torch.device) -> Found:
    """The cache of each model, cleared by the ids of every list."""
    results: Found = {}
    for shape in shapes:
        cache = Hybrid(shape, blocks, device)
        clear = cache.worker.runner._kv_block_zeroer.zero_block_ids
        lists = id_lists(blocks, seed=1)
        if device.type == "cuda":  # more than there is room for at first, and than one launch takes; no interpreter
            lists["40000 with repetitions"] = random.Random(2).choices(range(blocks), k=40000)
        for name, ids in lists.items():
            cache.poison()
            clear(ids)
            results[f"{shape.name}: {name}"] = cache.wrong(ids, cache.owned)
    return results


def of_odd_layouts(device: torch.device) -> Found:
    """Pages of odd sizes, strides and alignments: each alone in a table, and all in one."""
    from vllm.nvllm.page_zeroer import PageZeroer
    from vllm.nvllm.pages import Segment

    blocks = 40
    ids = [0, 7, blocks - 1, 8]
    buffers = {}
    for index, (name, (offset, stride, page)) in enumerate(ODD_LAYOUTS.items()):
        whole = torch.empty(offset + blocks * stride + 2 * GUARD, dtype=torch.uint8, device=device)
        segment = Segment(whole.data_ptr() + GUARD + offset, stride, page)
        buffers[name] = (whole, index + 1, segment, cleared(stride, [(offset, offset + page)], ids))

    def wrong(segments: list[Segment]) -> list[int]:
        for whole, seed, _, _ in buffers.values():
            poison(whole, seed)
        PageZeroer(device, device.type == "cuda", segments).zero_block_ids(ids)
        return [
            wrong_bytes(whole, seed, ranges if segment in segments else [])
            for whole, seed, segment, ranges in buffers.values()
        ]

    results = {f"odd layout: {name}": sum(wrong([segment])) for name, (_, _, segment, _) in buffers.items()}
    return results | {"odd layouts in one table": sum(wrong([segment for _, _, segment, _ in buffers.values()]))}


def of_the_comparison(shape: Shape, device: torch.device) -> Found:
    """What the comparison says of calls that do a little too little or too much: it must not be nothing."""
    cache = Hybrid(shape, 8, device)
    clear = cache.worker.runner._kv_block_zeroer.zero_block_ids

    def after(ids: list[int], spoil: Callable[[torch.Tensor], None]) -> int:
        cache.poison()
        clear(ids)
        spoil(cache.allocations[-1])
        return cache.wrong([3], cache.owned)

    def fill(at: int, value: int) -> Callable[[torch.Tensor], None]:
        def spoil(whole: torch.Tensor) -> None:
            whole[at] = value

        return spoil

    page = GUARD + 3 * shape.page
    owned: list[list[Range]] = cache.owned
    return {
        "nothing": after([3], lambda _: None),
        "first byte of the page left": after([3], fill(page, 1)),
        "last byte of the page left": after([3], fill(page + owned[-1][-1][1] - 1, 1)),
        "byte before the page cleared": after([3], fill(page - 1, 0)),
        "byte of the guard cleared": after([3], fill(0, 0)),
        "another page": after([4], lambda _: None),
    }


def main(name: str) -> None:
    hybrid.switch_on()
    device = torch.device(name)
    shapes, blocks = (SHAPES, 600) if device.type == "cuda" else (TINY, 12)
    result = {
        "cases": of_models(shapes, blocks, device) | of_odd_layouts(device),
        "comparison": of_the_comparison(shapes[0], device),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
