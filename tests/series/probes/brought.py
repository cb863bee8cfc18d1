"""Probes of the code that the series brings. On a tree without it they find None."""

from __future__ import annotations

import inspect
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from memory import SHAPES, MambaLayer, Worker
from world import (
    CPU,
    PAGE,
    hybrid,
    manager,
    owned,
    probe,
    request,
    scheduler,
)


def switches() -> Any:
    try:
        from vllm.nvllm import switches as module
    except ModuleNotFoundError:
        return None
    return module


@probe
def sentinels() -> Any:
    """What the log says of two patches, one with its sentinel file, that fire 201 times."""
    module = switches()
    if module is None or not hasattr(module, "DIRECTORY"):
        return None
    lines: list[str] = []
    module.logger.setLevel(logging.INFO)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Lines()
    module.logger.addHandler(handler)
    directory = Path(tempfile.mkdtemp())
    (directory / "there").touch()
    before, module.DIRECTORY = module.DIRECTORY, str(directory)
    try:
        there, absent = module.switch("there"), module.switch("absent")
        (directory / "there").unlink()
        (directory / "absent").touch()
        again = module.switch("there"), module.switch("absent")
        for _ in range(201):
            there.fired()
    finally:
        module.DIRECTORY = before
        module.logger.removeHandler(handler)
    return {
        "directory": before,
        "on": [there.on, absent.on],
        "read again": [each.on for each in again] != [True, False],
        "log": lines,
    }


@probe
def kernel() -> Any:
    """The arguments of the kernel that clears pages, and the launches of three models."""
    try:
        from vllm.nvllm import page_zeroer as module
    except ImportError:
        return None
    function = module.zero_pages_kernel
    launches = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*values: torch.Tensor, **constants: int) -> None:
                launches.append({"grid": grid, "types": [str(value.dtype) for value in values], "constants": constants})
                function[grid](*values, **constants)

            return launch

    module.zero_pages_kernel = Recorder()
    try:
        places, untouched = [], []
        for shape, ids in (("5+15", [5]), ("10+12", [5, 9]), ("4+9", [1, 2, 3])):
            worker = Worker(*SHAPES[shape])
            untouched.append(worker.untouched([]))
            zeroer = worker.runner._kv_block_zeroer
            for _ in range(3):
                worker.zero(ids)
                places.append((id(zeroer), zeroer._host.data_ptr(), zeroer._ids.data_ptr()))
    finally:
        module.zero_pages_kernel = function
    worker, small = Worker(*SHAPES["4+9"]), 8
    worker.runner._kv_block_zeroer._room_for(small)  # it begins with thousands, which the interpreter clears in minutes
    worker.zero([3] * (small + 1))
    return {
        "arguments": list(inspect.signature(function.fn).parameters),
        "launches": launches,
        "a new zeroer clears nothing": all(untouched),
        "buffers": len(set(places)),
        "zeroers": 3,
        "grown": len(worker.runner._kv_block_zeroer._host) > small,
        "cleared after growth": worker.zeros(3)["states"],
    }


@probe
def odd_segments() -> Any:
    """What the segment table refuses, and how it merges."""
    try:
        from vllm.nvllm import pages
    except ImportError:
        return None
    found: dict[str, Any] = {}
    for name, segments in (
        ("unequal strides", [(64, 4096, 4096), (64, 8192, 4096)]),
        ("odd address", [(62, 4096, 4096)]),
    ):
        try:
            pages.merged(pages.Segment(*each) for each in segments)
        except ValueError as error:
            found[name] = str(error)
    rows = pages.merged([pages.Segment(64, 4096, 100), pages.Segment(64, 4096, 4000), pages.Segment(8, 4096, 4)])
    found["merged"] = [(each.address, each.stride, each.page) for each in rows]
    return found


class UnevenLayer(MambaLayer):
    """A Mamba layer whose states lie in pages of different strides: no table of pages can describe it."""

    def bind(self, cache: Any) -> None:
        super().bind(cache)
        first, second = self.kv_cache
        self.kv_cache = [first, second[::2]]


@probe
def indescribable() -> Any:
    """What a start comes to whose cache the zeroer cannot describe, with its switch on and off."""
    module = switches()
    if module is None:
        return None
    switch = module.switch("page-zeroer")
    found: dict[str, str] = {}
    try:
        for name, on in (("on", True), ("off", False)):
            switch.on = on
            try:
                worker = Worker(*SHAPES["10+12"], mamba_layer=UnevenLayer)
                found[name] = type(worker.runner._kv_block_zeroer).__name__
            except ValueError as error:
                found[name] = str(error)
    finally:
        switch.on = True
    return found


def segments_of(worker: Worker) -> Any:
    """The pages of the cache, as the patch `poison` asks for them."""
    zeroer = worker.runner._kv_block_zeroer
    if hasattr(zeroer, "list_segments"):
        return zeroer.list_segments()
    return worker.runner._kv_pages()


def poisoned_by_the_kernel(module: Any) -> bool:
    """Whether the launch that a GPU would get, interpreted, fills the pages of block 5 and no other."""
    worker = Worker(*SHAPES["10+12"])

    def tensor(values: Any, dtype: Any, device: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    module.torch = SimpleNamespace(tensor=tensor, uint64=torch.uint64, int64=torch.int64)
    try:
        module.poison(segments_of(worker), [5], SimpleNamespace(type="a GPU"))
    finally:
        module.torch = torch
    return all(bool(state.isnan().all()) for state in worker.states(5)) and worker.untouched([5])


@probe
def poisoned() -> Any:
    """Which blocks become poison when, with and without a hash; and what a poisoned state holds."""
    try:
        from vllm.nvllm import poison as module
    except ImportError:
        return None
    switch = switches().switch("poison")
    found: dict[str, Any] = {"off": manager(hybrid()).block_pool.stale_blocks is None}
    switch.on = True
    try:
        kv = manager(hybrid())
        stale = kv.block_pool.stale_blocks
        one = request("a", 40)
        assert kv.allocate_slots(one, 40) is not None
        mine = owned(kv, "a")
        found["allocated"] = sorted(stale.take()) == sorted(mine["mamba"] + mine["attention"])
        kv.free(one)
        found["freed"] = sorted(stale.take()) == sorted(mine["mamba"] + mine["attention"])
        kept, gone = kv.block_pool.get_new_blocks(2)
        stale.take()
        kept._block_hash = b"a hash"
        kv.block_pool.enable_caching = True
        kv.block_pool.free_blocks([kept, gone])
        found["hit later is kept"] = stale.take() == [gone.block_id]

        one = scheduler(hybrid())
        one.add_request(request("a", 40))
        output = one.schedule()
        found["step carries"] = sorted(output.stale_block_ids) == sorted(output.new_block_ids_to_zero)
        worker = Worker(*SHAPES["10+12"])
        module.poison(segments_of(worker), [5, 9], CPU)
        found["nan"] = all(bool(state.isnan().all()) for block in (5, 9) for state in worker.states(block))
        found["untouched"] = worker.untouched([5, 9])
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
            value = worker.buffers[0].view(-1, PAGE)[5, :64].view(dtype).float()
            found[str(dtype)] = bool(value.isnan().all())
        found["kernel"] = poisoned_by_the_kernel(module)
    finally:
        switch.on = False
    return found
