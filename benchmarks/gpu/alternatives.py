"""Other ways to clear the pages, beside the patch's own: `python -m benchmarks.gpu.alternatives KERNELS REPETITIONS`.

KERNELS is what `first_fire lay` laid out: the patch's files are in it. Needs an NVIDIA GPU of 24 GB or more, torch,
Triton and nvcc, and neither nvllm nor vLLM. Prints one line of JSON: figures by contender, number of
blocks and kind, for a cache of 16 buffers with pages of 1 MiB, as the 64-layer hybrid has it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from benchmarks.gpu.delay import Delay
from benchmarks.gpu.first_fire import stand_in
from benchmarks.gpu.shapes import COUNTS
from benchmarks.gpu.table import figure

PAGE, SEGMENTS, BLOCKS, WARM_UP = 1 << 20, 16, 600, 20
POISON = 0x5A5A5A5A
_KEPT = 8  # calls whose pinned ids may still be read

CUDA = r"""
struct Ids { int count; int at[1000]; };

// As the patch's kernel, but the ids come with the launch.
extern "C" __global__ void with_ids(const unsigned long long *addresses, long long stride,
                                    __grid_constant__ const Ids ids)
{
    unsigned long long page = addresses[blockIdx.z] + ids.at[blockIdx.y] * stride;
    reinterpret_cast<uint4 *>(page)[blockIdx.x * blockDim.x + threadIdx.x] = make_uint4(0, 0, 0, 0);
}

// A few programs that stay; each has zeros in shared memory and one thread that queues copies of them (TMA).
template <int SIZE> __device__ void bulk(const unsigned long long *addresses, long long stride, long long size,
                                         const Ids &ids)
{
    extern __shared__ __align__(128) uint4 zeros[];
    for (int at = threadIdx.x; at < SIZE / 16; at += blockDim.x) zeros[at] = make_uint4(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x) return;
    unsigned source = static_cast<unsigned>(__cvta_generic_to_shared(zeros));
    int chunks = size / SIZE, total = chunks * ids.count * SEGMENTS;
    for (int item = blockIdx.x; item < total; item += gridDim.x) {
        int chunk = item % chunks, id = item / chunks % ids.count, segment = item / chunks / ids.count;
        unsigned long long target = addresses[segment] + ids.at[id] * stride + (long long)chunk * SIZE;
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(source), "n"(SIZE)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#define BULK(name, size) \
    extern "C" __global__ void name(const unsigned long long *addresses, long long stride, \
                                    __grid_constant__ const Ids ids) { bulk<size>(addresses, stride, PAGE, ids); }
BULK(bulk_8, 8192)
BULK(bulk_16, 16384)
BULK(bulk_32, 32768)
"""

Call = Callable[[list[int]], None]


class Ids(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int), ("at", ctypes.c_int * 1000))


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def staying_kernel(  # type: ignore[no-untyped-def]  # Triton takes no annotation but constexpr
    addresses_ptr, stride, ids_ptr, segments: tl.constexpr, chunks: tl.constexpr, size: tl.constexpr
):
    """Clear chunks in turn; the number of ids stands before them, so that a recorded launch fits any step."""
    count = tl.load(ids_ptr)
    zeros = tl.zeros([size], dtype=tl.int32)
    for item in range(tl.program_id(0), count * segments * chunks, tl.num_programs(0)):
        block_id = tl.load(ids_ptr + 1 + item // chunks % count)
        address = tl.load(addresses_ptr + item // chunks // count)
        address += (block_id * stride + (item % chunks) * size * 4).to(tl.uint64)
        words = tl.multiple_of(tl.cast(address, tl.pointer_type(tl.int32)), 16)
        tl.store(words + tl.arange(0, size), zeros)


def module() -> Any:
    """Return the functions of CUDA, compiled for this GPU."""
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as scratch:
        source, code = Path(scratch, "zero.cu"), Path(scratch, "zero.cubin")
        source.write_text(CUDA, encoding="utf-8")
        suffix = "a" if major >= 9 else ""
        argv = ["nvcc", "-O3", "-cubin", f"-arch=sm_{major}{minor}{suffix}", f"-DPAGE={PAGE}", f"-DSEGMENTS={SEGMENTS}"]
        subprocess.run([*argv, "-o", str(code), str(source)], check=True)
        return code.read_bytes()


class Driver:
    """Launches of functions from a cubin, as a program in C would make them."""

    def __init__(self, cubin: bytes) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        loaded = ctypes.c_void_p()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(loaded), cubin))
        self.loaded = loaded

    def check(self, status: int) -> None:
        assert status == 0, f"the driver's status {status}"

    def function(self, name: str, shared: int = 0) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self.check(self.driver.cuModuleGetFunction(ctypes.byref(function), self.loaded, name.encode()))
        if shared:
            self.check(self.driver.cuFuncSetAttribute(function, 8, shared))  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        return function

    def launch(
        self, function: ctypes.c_void_p, grid: Sequence[int], threads: int, shared: int, arguments: Sequence[Any]
    ) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p) for argument in arguments)
        )
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.driver.cuLaunchKernel(function, *grid, threads, 1, 1, shared, stream, pointers, None))

    def memset(self, address: int, size: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(
            self.driver.cuMemsetD8Async(ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size), stream)
        )

    def memset_rows(self, address: int, pitch: int, size: int, rows: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        zero, width, height = ctypes.c_uint(0), ctypes.c_size_t(size // 4), ctypes.c_size_t(rows)
        self.check(
            self.driver.cuMemsetD2D32Async(
                ctypes.c_uint64(address), ctypes.c_size_t(pitch), zero, width, height, stream
            )
        )


class Cache:
    """SEGMENTS buffers of BLOCKS pages, every word of them POISON; at equal distances, which no engine promises."""

    def __init__(self) -> None:
        self.buffers = list(torch.empty((SEGMENTS, BLOCKS, PAGE // 4), dtype=torch.int32, device="cuda"))
        self.addresses = torch.tensor([buffer.data_ptr() for buffer in self.buffers], dtype=torch.uint64, device="cuda")
        self.poison()

    def poison(self) -> None:
        for buffer in self.buffers:
            buffer.fill_(POISON)

    def right(self, ids: Sequence[int]) -> bool:
        """Return whether the pages of IDS are zero and no other word was touched."""
        mine = torch.zeros(BLOCKS, dtype=torch.bool, device="cuda")
        mine[list(ids)] = True
        return all(not bool(buffer[mine].any()) and bool((buffer[~mine] == POISON).all()) for buffer in self.buffers)


def patched(cache: Cache, tree: Path) -> Call:
    stand_in(tree)
    from vllm.nvllm.page_zeroer import PageZeroer
    from vllm.nvllm.pages import Segment

    segments = [Segment(buffer.data_ptr(), PAGE, PAGE) for buffer in cache.buffers]
    call: Call = PageZeroer(torch.device("cuda"), pin_memory=True, segments=segments).zero_block_ids
    return call


def in_arguments(cache: Cache, driver: Driver) -> dict[str, Call]:
    """Return the calls whose ids are arguments of the launch."""
    address, stride = ctypes.c_uint64(cache.addresses.data_ptr()), ctypes.c_longlong(PAGE)
    units = torch.cuda.get_device_properties(0).multi_processor_count
    kept = Ids()

    def filled(ids: list[int]) -> Ids:
        kept.count = len(ids)
        kept.at[: len(ids)] = sorted(ids)
        return kept

    plain = driver.function("with_ids")

    def stores(ids: list[int]) -> None:
        driver.launch(plain, (PAGE // 4096, len(ids), SEGMENTS), 256, 0, (address, stride, filled(ids)))

    def bulk(kib: int, programs: int) -> Call:
        function = driver.function(f"bulk_{kib}", kib << 10)

        def call(ids: list[int]) -> None:
            driver.launch(function, (programs * units, 1, 1), 128, kib << 10, (address, stride, filled(ids)))

        return call

    return {
        "ids as arguments": stores,
        "ids as arguments, bulk stores of 8 KiB": bulk(8, 4),
        "ids as arguments, bulk stores of 16 KiB": bulk(16, 2),
        "ids as arguments, bulk stores of 32 KiB": bulk(32, 1),
        "ids as arguments, bulk stores of 32 KiB, 4 programs": bulk(32, 4),
    }


def staying(cache: Cache) -> dict[str, Call]:
    """Return the calls of a kernel whose programs stay: alone, recorded in a graph, and with ids on the host."""
    units = torch.cuda.get_device_properties(0).multi_processor_count
    size = 1024
    host = [torch.zeros(size, dtype=torch.int64, pin_memory=True) for _ in range(_KEPT)]
    views = [tensor.numpy() for tensor in host]
    device = torch.zeros(size, dtype=torch.int64, device="cuda")
    turn = 0

    def fill(ids: list[int], at: int) -> None:
        views[at][0] = len(ids)
        view = views[at][1 : len(ids) + 1]
        view[:] = ids
        view.sort()

    def launch(source: torch.Tensor) -> None:
        staying_kernel[(units * 16,)](
            cache.addresses, PAGE, source, segments=SEGMENTS, chunks=PAGE // 4096, size=1024, num_warps=8
        )

    def plain(ids: list[int]) -> None:
        nonlocal turn
        turn = (turn + 1) % _KEPT
        fill(ids, turn)
        device.copy_(host[turn], non_blocking=True)
        launch(device)

    def mapped(ids: list[int]) -> None:
        nonlocal turn
        turn = (turn + 1) % _KEPT
        fill(ids, turn)
        launch(host[turn])

    fill([1], 0)
    plain([1])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        device.copy_(host[0], non_blocking=True)
        launch(device)

    def recorded(ids: list[int]) -> None:
        fill(ids, 0)  # the benchmark waits for each call, as the model runner does for the last step's copies
        graph.replay()

    return {
        "programs that stay": plain,
        "programs that stay, recorded in a graph": recorded,
        "programs that stay, ids read from the host": mapped,
    }


def memsets(cache: Cache, driver: Driver) -> dict[str, Call]:
    """Return memsets recorded in graphs; the recording is not timed, so each is a bound."""
    graphs: dict[tuple[object, ...], Any] = {}

    def page(block: int) -> list[Callable[[], None]]:
        return [partial(driver.memset, buffer.data_ptr() + block * PAGE, PAGE) for buffer in cache.buffers]

    def column(block: int) -> list[Callable[[], None]]:
        return [partial(driver.memset_rows, cache.buffers[0].data_ptr() + block * PAGE, BLOCKS * PAGE, PAGE, SEGMENTS)]

    def record(every: Sequence[Callable[[], None]], branches: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            sides = [torch.cuda.Stream() for _ in range(branches)]
            for number, side in enumerate(sides):
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    for clear in every[number::branches]:
                        clear()
                main.wait_stream(side)
        return graph

    def by(pieces: Callable[[int], list[Callable[[], None]]], branches: int) -> Call:
        def call(ids: list[int]) -> None:
            key = (pieces, branches, *ids)
            if key not in graphs:
                graphs[key] = record([clear for block in ids for clear in pieces(block)], branches)
            graphs[key].replay()

        return call

    pool = torch.empty((512, SEGMENTS * PAGE), dtype=torch.uint8, device="cuda")

    def in_one_piece(ids: list[int]) -> None:
        driver.memset(pool.data_ptr(), len(ids) * SEGMENTS * PAGE)

    return {
        "memset of as many bytes in one piece": in_one_piece,
        "memset of each page, in a graph": by(page, 1),
        "memset of each page, in a graph of 16 branches": by(page, 16),
        "memset of each block in rows, in a graph": by(column, 1),
        "memset of each block in rows, in a graph of 16 branches": by(column, 16),
    }


def clock() -> float:
    """Return how many cycles of `torch.cuda._sleep` the GPU takes for a microsecond."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(20_000_000)
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    end.synchronize()
    return float(20_000_000 / (begin.elapsed_time(end) * 1e3))


def timed(call: Call, ids: list[int], busy: int) -> tuple[float, float, bool]:
    """Return the GPU's and the host's microseconds of a call behind BUSY cycles of work, and whether that sufficed."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    if busy:
        torch.cuda._sleep(busy)
    begin.record()
    started = time.perf_counter_ns()
    call(ids)
    host = time.perf_counter_ns() - started
    end.record()
    waited = not begin.query()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3, host / 1e3, waited


def measure(calls: dict[str, Call], repetitions: int) -> dict[str, dict[int, dict[str, Any]]]:
    rng, per_us = random.Random(4), clock()
    results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in calls}
    for count in COUNTS:
        delay, samples = Delay(per_us), {name: defaultdict[str, list[float]](list) for name in calls}
        fixed = rng.sample(range(1, BLOCKS), count)  # a graph of memsets has its ids recorded
        gc.collect()
        gc.disable()
        for repetition in range(-WARM_UP, repetitions):
            for name in rng.sample(list(calls), len(calls)):
                graphed = name.startswith("memset of each")
                if graphed and count > 64:
                    continue
                kept = samples[name]
                ids = fixed if graphed else rng.sample(range(1, BLOCKS), count)
                gpu, host, _ = timed(calls[name], ids, 0)
                if repetition >= 0:
                    kept["alone"].append(gpu)
                kept["host"].append(host)
                if repetition < -3:
                    continue
                ids = fixed if graphed else rng.sample(range(1, BLOCKS), count)
                for _ in range(8):
                    gpu, _, waited = timed(calls[name], ids, delay.cycles(name, kept["host"][-3:]))
                    if waited:
                        kept["queued"].append(gpu)
                    if waited or not delay.lengthen(name):
                        break
        gc.enable()
        for name, kinds in samples.items():
            results[name][count] = {
                kind: asdict(figure(kept[-repetitions:])) for kind, kept in kinds.items() if len(kept) > 1
            }
    return results


def main(tree: Path, repetitions: int) -> None:
    cache, driver = Cache(), Driver(module())
    calls = {
        "the patch": patched(cache, tree),
        **in_arguments(cache, driver),
        **staying(cache),
        **memsets(cache, driver),
    }
    right = {}
    for name, call in calls.items():
        cache.poison()
        ids = random.Random(3).sample(range(1, BLOCKS), 33)
        call(ids)
        torch.cuda.synchronize()
        right[name] = "in one piece" in name or cache.right(ids)
    about = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(json.dumps({"environment": about, "right": right, "alternatives": measure(calls, repetitions)}))
    assert all(right.values()), right


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
