"""Compile the kernels of a series under Triton 3.8, or prove that a cache holds them.

Job and answer are those of `precompile.py`, which runs here; this module has what differs. Triton 3.8 compiles one
module in C, from a file of its own, where 3.6 compiles one more for each signature of a kernel. And the vLLM that asks
for it zeroes pages with a kernel of vLLM's own, in a module that imports half of vLLM.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def _precompile() -> Any:
    spec = importlib.util.spec_from_file_location("precompile", Path(__file__).with_name("precompile.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


precompile = _precompile()
_Tensor: Any = precompile._Tensor
_LaunchUtils: Any = precompile._Utils


class _StandIn(types.ModuleType):
    """A module from which everything can be imported: as a class that takes any arguments."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args, **options: None})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds as a stand-in what of vLLM and numpy is not in the job's tree."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in {"numpy", "vllm"}:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: a stand-in has no code."""


class _Switch:
    """The switch of the patch, off: the rows that it adds, those of Mamba, are launched as the others are."""

    on = False

    def __init__(self, name: str) -> None:
        """As vLLM asks for it."""

    def fired(self) -> None:
        """Nothing: no sentinel counts here."""


class _Pages(_Tensor):  # type: ignore[misc]
    """The cache of a layer with one block: what vLLM asks of it to find the page of WORDS words of 4 bytes."""

    ndim = 2
    device = types.SimpleNamespace(type="cuda")

    def __init__(self, words: int, address: int) -> None:
        super().__init__("int32", words, address)
        self.shape = (1, words)

    def element_size(self) -> int:
        return 4

    def stride(self, dimension: int) -> int:
        return (self.length, 1)[dimension]


def _zeroer(action: str) -> Iterator[tuple[int, int, int]]:
    """Launch vLLM's own zeroer as the model runners do and yield the grid that each launch must have.

    The words that a program clears, at most 1,024 of a page, are a constant of the kernel: it has eleven variants.
    """
    vllm = sys.modules["vllm"].__path__[0]
    sys.modules["vllm.v1"].__path__ = [os.path.join(vllm, "v1")]
    sys.modules.pop("vllm.v1.kv_cache_interface", None)  # that of `precompile.py` has not all that is imported from it
    switches = importlib.import_module("vllm.nvllm.switches")
    if isinstance(switches, _StandIn):
        vars(switches)["switch"] = _Switch
    tensors: Any = importlib.import_module("vllm.utils.torch_utils")
    tensors.async_tensor_h2d = lambda data, device, dtype: _Tensor(dtype, len(data))
    utils: Any = importlib.import_module("vllm.v1.worker.utils")

    def launch(count: int, words: Sequence[int]) -> tuple[int, int, int]:
        spec = utils.AttentionSpec()
        spec.block_size = 16
        layers = {str(at): types.SimpleNamespace(kv_cache=_Pages(n, 4096 * (at + 1))) for at, n in enumerate(words)}
        group = types.SimpleNamespace(kv_cache_spec=spec, kv_cache_group_id=0, layer_names=[*layers])
        group.kernel_block_stride = 0
        zeroer = utils.KVBlockZeroer(types.SimpleNamespace(type="cuda"), [group], [16], layers, 1)
        zeroer.zero_block_ids(list(range(count)))
        return count, len(words), -(-max(words) // 1024)

    for power in range(11):
        yield launch(1, [1 << power])
    if action == "build":
        return
    for count, words in ((1, [1 << 18] * 64), (16, [1] * 65535), (8193, [1025]), (70000, [1 << 26])):
        yield launch(count, words)
    draw = random.Random(0)  # noqa: S311 - the same launches at every check
    while True:
        words = [draw.randint(1, 1 << draw.randint(1, 22)) for _ in range(draw.randint(1, 200))]
        yield launch(draw.randint(1, 1 << draw.randint(1, 14)), words)


class _Utils(_LaunchUtils):  # type: ignore[misc]
    """Besides, what Triton 3.8 asks of a driver when it makes a launcher and when it lets go of a kernel."""

    launch = None

    def build_signature_metadata(self, signature: Sequence[str]) -> bytes:
        return b""

    def unload_module(self, module: object) -> None:
        """Nothing: none was loaded."""


def _one_module() -> None:
    """Let `precompile.py` record the module in C of Triton 3.8 as those of 3.6: by name and source."""
    driver: Any = importlib.import_module("triton.backends.nvidia.driver")

    def compile_module_from_file(src_path: str, name: str, **_: object) -> types.ModuleType:
        driver.compile_module_from_src(Path(src_path).read_text(encoding="utf-8"), name)
        return _StandIn(name)

    driver.compile_module_from_file = compile_module_from_file


if __name__ == "__main__":
    precompile._Utils = _Utils
    precompile._LAUNCHED["vllm/v1/worker/utils.py"] = _zeroer
    sys.meta_path.append(_Finder())
    _one_module()
    precompile.main()
