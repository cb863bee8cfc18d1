"""Compile the kernels of a series, or prove that a cache holds them; runs with Triton alone.

It runs under the image's own Python, or under the host's where that one cannot run (`nvllm.kernels.kernellayer`).

One job on stdin, as JSON; one line of JSON on stdout. There is no GPU, and neither vLLM nor torch: the modules that
launch the kernels are the patched ones, loaded from the job's tree, and what they import besides is stood in for as
far as a launch asks for it. Triton's launch path asks of a tensor its data type and its address, of a driver the
architecture. So every key is made by Triton itself, from a launch as the engine makes it.

The job: ``action`` (``build``: compile what is launched; ``check``: launch much more, on a cache that may not
compile), ``tree`` (the patched files), ``paths`` (those of them with kernels), ``targets`` (such as ``sm_120a``),
``libraries`` (sha256 of libtriton.so: of the wheel that runs here, and of the image's), ``ptxas`` (what the tools of
both were read to say of their version: ``own``, which is compared with what they do say, and ``image``), ``base``
(``check``: the cache to prove) and ``manager`` (where its class lies).
"""

import importlib
import importlib.util
import itertools
import json
import logging
import os
import random
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_ALIGNMENT = 512
"""Bytes: torch's CUDA allocator rounds every block up to a multiple of this, and a block begins where one ended."""

_CALLS = 200
"""Calls of a check for each kernel and target: those at the edges first, then drawn ones. Most are one launch each."""


class _Tensor:
    """What a launch, and the code around it, asks of a tensor. Its memory is never touched."""

    _next = 1 << 40

    def __init__(self, dtype: object, length: int, address: int | None = None) -> None:
        self.dtype = dtype
        self.length = length
        if address is None:
            address = _Tensor._next
            _Tensor._next += -(-max(8 * length, 1) // _ALIGNMENT) * _ALIGNMENT
        self.address = address

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> "_Tensor":
        start, stop, _ = part.indices(self.length)
        return _Tensor(self.dtype, stop - start, self.address + 8 * start)

    def data_ptr(self) -> int:
        return self.address

    def numpy(self) -> list[int]:
        return [0] * self.length

    def copy_(self, other: "_Tensor", *, non_blocking: bool) -> None:
        assert len(self) == len(other)
        assert non_blocking


class _Dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


def _torch() -> types.ModuleType:
    """Return a stand-in for the part of torch that the launching modules use."""
    module: Any = types.ModuleType("torch")
    module.Tensor, module.dtype, module.device = _Tensor, _Dtype, str
    for name in ("uint64", "int64", "int32", "uint8"):
        setattr(module, name, _Dtype(name))
    module.empty = lambda length, dtype, **_: _Tensor(dtype, length)
    module.tensor = lambda values, dtype, **_: _Tensor(dtype, len(values))
    return module  # type: ignore[no-any-return]


def _stand_in(tree: str) -> None:
    """Make ``import torch`` and ``import vllm`` work as far as the launching modules below TREE need it."""
    triton = importlib.import_module("triton")
    modules: dict[str, dict[str, object]] = {
        "vllm": {"__path__": [os.path.join(tree, "vllm")]},
        "vllm.v1": {"__path__": []},
        "vllm.v1.kv_cache_interface": {name: type(name, (), {}) for name in ("AttentionSpec", "MambaSpec")},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.triton_utils": {"triton": triton, "tl": importlib.import_module("triton.language")},
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
    sys.modules["torch"] = _torch()


class _Utils:
    """What Triton asks of a driver when it loads a kernel."""

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[object, object, int, int, int]:
        return object(), object(), 32, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 101376, "multiprocessor_count": 48, "warpSize": 32}


class _Launches:
    """Where launches end: COMPILED are the kernels that were asked for, GRIDS what was launched."""

    def __init__(self) -> None:
        self.compiled: list[Any] = []
        self.grids: list[tuple[int, int, int]] = []
        self.hits: list[tuple[str, str, bool]] = []
        """Name of the kernel, hash, and whether it was in the cache."""

    def launcher(self, source: Any, metadata: Any) -> Callable[..., None]:
        self.compiled.append((source, metadata))

        def launch(x: int, y: int, z: int, *_: object) -> None:
            self.grids.append((x, y, z))

        return launch

    def listen(self, *, src: Any, metadata: dict[str, Any], cache_hit: bool, **_: object) -> None:
        self.hits.append((src.fn.__name__, metadata["hash"], cache_hit))


def _driver(capability: int, launches: _Launches) -> object:
    """Return a driver of a device of compute capability CAPABILITY (``121``) that launches nothing."""
    base: Any = importlib.import_module("triton.backends.driver").DriverBase
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)

    class Driver(base):  # type: ignore[misc]
        utils = _Utils()
        launcher_cls = staticmethod(launches.launcher)

        def __init__(self) -> None:
            """Nothing: the base class would look for a device."""

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> object:
            return target

        def get_current_device(self) -> int:
            return capability  # what was compiled for one device is not taken for another

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_active_torch_device(self) -> object:
            raise NotImplementedError

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError

        def get_benchmarker(self) -> object:
            raise NotImplementedError

    return Driver()


# How the engine launches each kernel. A kernel of a series that is not here is refused, not passed over.


def _page_zeroer(action: str) -> Iterator[tuple[int, int, int]]:
    """Launch the page zeroer as the model runner does and yield the grid that the last launch of a call must have.

    The first launch, when it is made, clears nothing and goes through Triton's launch path, where the key is made.
    Each later one goes straight to what that one compiled.
    """
    module = importlib.import_module("vllm.nvllm.page_zeroer")
    pages = importlib.import_module("vllm.nvllm.pages")

    def launch(counts: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        segments = [pages.Segment(4096 * (at + 1), size + 4 * at, size) for at, size in enumerate(sizes)]
        for count in counts:
            zeroer = module.PageZeroer("cuda", pin_memory=False, segments=segments)
            last = count % module.BLOCKS or module.BLOCKS
            for _ in range(2):
                zeroer.zero_block_ids(list(range(count)))
                yield -(-max(sizes) // (4 * module.CHUNK)), last, len(sizes)

    if action == "build":
        yield from launch([1], [4096])
        return
    edges = [1, 2, 3, 15, 16, 17, 48, 100, 8191, 8192, 8193, 32768, 32769, 70000]
    yield from launch(edges, [4])
    yield from launch([*reversed(edges)], [1 << 20] * 64)
    yield from launch([1, 2, 16], [4] * 65535)
    yield from launch([1, 16], [65536 * 4096])
    draw = random.Random(0)  # noqa: S311 - the same launches at every check
    while True:
        sizes = [4 * draw.randint(1, 1 << draw.randint(1, 22)) for _ in range(draw.randint(1, 200))]
        yield from launch([draw.randint(1, 1 << draw.randint(1, 14)) for _ in range(4)], sizes)


def _poison(action: str) -> Iterator[tuple[int, int, int]]:
    """Launch what fills freed blocks with NaN, as the model runner does."""
    module = importlib.import_module("vllm.nvllm.poison")
    pages = importlib.import_module("vllm.nvllm.pages")
    device = types.SimpleNamespace(type="cuda")
    draw = random.Random(0)  # noqa: S311 - the same launches at every check
    sizes = [[4], [1 << 20] * 64, [4] * 65535, [65535 * 4096]]
    for number in itertools.count():
        size = sizes[number] if number < len(sizes) else [4 * draw.randint(1, 1 << 22)] * draw.randint(1, 200)
        segments = [pages.Segment(4096 * (at + 1), each, each) for at, each in enumerate(size)]
        count = (1, 2, 16, 17)[number] if number < len(sizes) else draw.randint(1, 5000)
        module.poison(segments, range(count), device)
        yield count, len(size), -(-max(size) // 4096)
        if action == "build":
            return


_LAUNCHED = {"vllm/nvllm/page_zeroer.py": _page_zeroer, "vllm/nvllm/poison.py": _poison}


def _capability(target: str) -> int:
    """Return the capability of TARGET. Raises ValueError if Triton compiles that for something else."""
    match = re.fullmatch(r"sm_(\d+)[a-z]?", target)
    compiler = importlib.import_module("triton.backends.nvidia.compiler")
    if match is None or compiler.sm_arch_from_capability(int(match[1])) != target:
        made = compiler.sm_arch_from_capability(int(match[1])) if match else "nothing"
        raise ValueError(f"Triton compiles {made} in its place")
    return int(match[1])


def _as_in_the_image(job: dict[str, Any]) -> None:
    """Make Triton compute the keys that it computes in the image.

    The key covers the contents of Triton's files, which the launcher has compared: they are equal but for
    libtriton.so, which is another one for each Python and machine. And it covers what ptxas says of itself.
    """
    cache: Any = importlib.import_module("triton.runtime.cache")
    here, inside = job["libraries"]
    key = cache.triton_key()
    if key.count(here) != 1:
        raise ValueError(f"sha256 {here} of libtriton.so is not once in Triton's key")
    cache.triton_key = lambda: key.replace(here, inside)
    compiler: Any = importlib.import_module("triton.backends.nvidia.compiler")
    version: Callable[[int], str] = compiler.get_ptxas_version
    own, image = job["ptxas"]["own"], job["ptxas"]["image"]
    for arch, name in ((90, "ptxas"), (120, "ptxas-blackwell")):
        if version(arch) != own[name]:
            raise ValueError(f"{name} does not say what was read from it, but {version(arch)!r}")
    compiler.get_ptxas_version = lambda arch=80: image["ptxas-blackwell" if arch >= 100 else "ptxas"]


def _stub_sources(compiled: Sequence[Any]) -> list[dict[str, str]]:
    """Return name and C source of each module that Triton has a C compiler make before the first launch."""
    modules: dict[str, str] = {}

    def record(src: str, name: str, **_: object) -> types.SimpleNamespace:
        modules[src] = name
        return types.SimpleNamespace(launch=None, PyCUtensorMap=None, **dict.fromkeys(_UTILS))

    driver: Any = importlib.import_module("triton.backends.nvidia.driver")
    driver.compile_module_from_src = record
    driver.library_dirs = list
    driver.CudaUtils()
    for source, metadata in compiled:
        driver.CudaLauncher(source, metadata)
    return [{"name": name, "source": source} for source, name in sorted(modules.items())]


_UTILS = (
    "load_binary",
    "get_device_properties",
    "cuOccupancyMaxActiveClusters",
    "set_printf_fifo_size",
    "fill_tma_descriptor",
)


def main() -> None:
    job = json.load(sys.stdin)
    triton: Any = importlib.import_module("triton")
    _as_in_the_image(job)
    if job["action"] == "check":
        _use(job["manager"], job["base"])
    _stand_in(job["tree"])
    kernels, compiled, problems, count = [], [], [], 0
    for target in job["targets"]:
        launches = _Launches()
        triton.knobs.compilation.listener = launches.listen
        try:
            triton.runtime.driver.set_active(_driver(_capability(target), launches))
        except ValueError as error:
            problems.append({"where": target, "expected": "an architecture that Triton names so", "found": str(error)})
            continue
        problems += [{"where": target, **one} for one in _drive(job, launches)]
        for name, key, hit in launches.hits:
            kernels.append({"target": target, "name": name, "hash": key, "hit": hit})
        compiled += launches.compiled
        count += len(launches.grids)
    made = {"kernels": kernels, "stubs": _stub_sources(compiled), "launches": count, "problems": problems}
    print(json.dumps({**made, "key": importlib.import_module("triton.runtime.cache").triton_key()}))


def _drive(job: dict[str, Any], launches: _Launches) -> Iterator[dict[str, str]]:
    """Launch what the job asks for and yield what went wrong."""
    for path in job["paths"]:
        if path not in _LAUNCHED:
            yield {"expected": f"a known way in which the engine launches the kernels of {path}", "found": "none"}
            continue
        try:
            for grid in itertools.islice(_LAUNCHED[path](job["action"]), _CALLS):
                if launches.grids[-1:] != [grid]:
                    yield {"expected": f"a launch of grid {grid}", "found": str(launches.grids[-1:])}
        except RuntimeError as error:
            yield {"expected": f"every launch of {path} from the cache", "found": str(error)}


def _use(path: str, base: str) -> None:
    """Make Triton look into the cache at BASE, through the manager at PATH, and let it compile nothing."""
    spec = importlib.util.spec_from_file_location("nvllm_triton_cache", path)
    assert spec is not None
    assert spec.loader is not None
    manager: Any = importlib.util.module_from_spec(spec)
    sys.modules["nvllm_triton_cache"] = manager
    spec.loader.exec_module(manager)
    manager.BASE = base
    manager.refusing = lambda: True
    manager.blessed = lambda: False  # the job has a cache of its own, which must stay empty
    knobs: Any = importlib.import_module("triton.knobs")
    knobs.cache.manager_class = manager.LayeredCache


if __name__ == "__main__":
    main()
