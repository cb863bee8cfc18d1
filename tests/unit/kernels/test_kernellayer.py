"""The kernels layer: which files hold kernels, what decides the layer, and what is read off the image's own tools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.core.plan import ENGINE_ENVIRONMENT
from nvllm.kernels import kernellayer
from nvllm.kernels.kernellayer import KernelSources
from support import kernel_samples, locks

KERNEL = b"from vllm.triton_utils import triton\n@triton.jit\ndef zero(): ...\n"
TUNED = b"@triton.autotune([])\n@triton.jit(debug=True)\ndef zero(): ...\n"
METHOD = b"class A:\n    @triton.jit\n    def zero(): ...\n"
PLAIN = b'"""@triton.jit"""\n@functools.cache\ndef zero(): ...\n'

LOCK = kernel_samples.lock(locks.wheel("triton", "3.6.0"), locks.wheel("ziglang", "0"))


@pytest.mark.parametrize(("text", "has"), [(KERNEL, True), (TUNED, True), (METHOD, True), (PLAIN, False), (b"", False)])
def test_a_kernel_is_known_by_its_decorator(text: bytes, has: bool) -> None:
    assert kernellayer.declared({"vllm/a.py": text, "vllm/a.cu": KERNEL, "vllm/gone.py": None}) == (
        ("vllm/a.py",) if has else ()
    )


def test_the_modules_beside_a_kernel_decide_too() -> None:
    files = {
        "vllm/nvllm/zero.py": KERNEL,
        "vllm/nvllm/pages.py": PLAIN,
        "vllm/envs.py": PLAIN,
        "vllm/nvllm/old.py": None,
    }
    assert kernellayer.sources(files) == {"vllm/nvllm/zero.py": KERNEL, "vllm/nvllm/pages.py": PLAIN}
    assert kernellayer.sources({"vllm/envs.py": PLAIN}) == {}


def test_what_decides_a_layer() -> None:
    wanted = KernelSources(("sm_120a",), {"vllm/nvllm/zero.py": KERNEL})
    plain = kernellayer.factors(LOCK, wanted)
    others = [
        kernellayer.factors(LOCK, replace(wanted, targets=("sm_121a",))),
        kernellayer.factors(LOCK, replace(wanted, files={"vllm/nvllm/zero.py": KERNEL + b"\n"})),
        kernellayer.factors(replace(LOCK, platform="linux/arm64"), wanted),
        kernellayer.factors(replace(LOCK, wheels=(locks.wheel("triton", "3.6.1"),)), wanted),
    ]
    assert all(one != plain for one in others)
    # On which host it is made is no factor: a tool for another host changes nothing.
    more = replace(LOCK, tools=(*LOCK.tools, replace(LOCK.tools[0], file=locks.wheel("ziglang", "0", "other").file)))
    assert kernellayer.factors(more, wanted) == plain


@pytest.mark.parametrize("days", ["Tue_May_27_02:18:05_PDT_2025", "Fri_Nov__7_07:21:27_PM_PST_2025"])
def test_a_version_is_read_as_it_is_printed(days: str) -> None:
    """With the hours of CUDA 12, and with those of CUDA 13, as in Triton 3.7.1."""
    assert kernellayer.version(kernel_samples.ptxas(days=days), "ptxas-blackwell") == (
        "ptxas-blackwell: NVIDIA (R) Ptx optimizing assembler\n"
        "Copyright (c) 2005-2025 NVIDIA Corporation\n"
        f"Built on {days}\n"
        "Cuda compilation tools, release 12.9, V12.9.86\n"
        "Build cuda_12.9.r12.9/compiler.36037853_0\n"
    )


def test_what_an_engine_compiles_is_kept_where_its_cache_is() -> None:
    assert kernellayer.ENVIRONMENT["TRITON_CACHE_DIR"].startswith(ENGINE_ENVIRONMENT["VLLM_CACHE_ROOT"] + "/")
    assert not kernellayer.ENVIRONMENT.keys() & ENGINE_ENVIRONMENT.keys()
