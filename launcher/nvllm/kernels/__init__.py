"""Triton's kernels, compiled for every target without a GPU, and checked to be all that an engine launches.

In: the patched modules with kernels, the locked compilers. Out: the entries of one layer.
"""

from typing import TYPE_CHECKING

from nvllm.core import exports

__all__ = ["Kernel", "KernelCompiler", "KernelSources"]

if TYPE_CHECKING:
    from nvllm.kernels.layer import Kernel, KernelCompiler, KernelSources
else:
    __getattr__ = exports.lazy(__name__, {"layer": ["Kernel", "KernelCompiler", "KernelSources"]})
