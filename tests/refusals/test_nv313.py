"""NV313, kernel not compiled: a kernel cannot be compiled, or an engine would compile it.

Triton is out of reach here: a stand-in package of that name answers what `kernels/precompile.py` asks first, and the
script itself runs. The real Triton is in tests/series/test_kernels.py.
"""

from __future__ import annotations

import platform
import sys
import zipfile
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.kernels.kernellayer import KernelCompiler
from nvllm.sources.store import Store
from support import kernel_samples

HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"
_MACHINE = platform.machine()


def test_what_triton_says_is_in_the_refusal(tmp_path: Path) -> None:
    triton = tmp_path / f"triton-3.6.0-{HERE}-{HERE}-manylinux_2_28_{_MACHINE}.whl"
    kernel_samples.triton(triton, __init__=b"raise SystemExit('no such instruction')")
    zig = tmp_path / f"ziglang-0-py3-none-manylinux_2_28_{_MACHINE}.whl"
    with zipfile.ZipFile(zig, "w") as wheel:
        wheel.writestr("ziglang/zig", b"")
    lock = kernel_samples.lock(
        kernel_samples.locked(triton), kernel_samples.locked(triton), kernel_samples.locked(zig, "ziglang")
    )
    store = Store(tmp_path / "store")
    for path in (triton, zig):
        store.adopt(path, kernel_samples.locked(path).file.sha256)
    with KernelCompiler(lock, kernel_samples.SITE, store) as bench:
        with pytest.raises(Refused) as caught:
            list(bench.entries(kernel_samples.WANTED))
        directory = bench.directory
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.expected) == ("NV313", "triton", "kernels that compile")
    assert found.found == "no such instruction"
    assert not directory.exists()
