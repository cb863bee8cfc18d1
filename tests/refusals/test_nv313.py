"""NV313, kernel not compiled: a kernel cannot be compiled, or an engine would compile it.

Triton is out of reach here: a stand-in package of that name answers what `kernels/precompile.py` asks first, and the
script itself runs. The real Triton is in tests/series/test_kernels.py.
"""

from __future__ import annotations

import platform
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.kernels.kernellayer import KernelCompiler
from nvllm.sources.store import Store
from support import kernel_samples

HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"
_MACHINE = platform.machine()


def compiler(tmp_path: Path, version: str) -> KernelCompiler:
    """The compiler of an image with a Triton of VERSION, that compiles nothing."""
    triton = tmp_path / f"triton-{version}-{HERE}-{HERE}-manylinux_2_28_{_MACHINE}.whl"
    kernel_samples.triton(triton, __init__=b"raise SystemExit('no such instruction')")
    zig = tmp_path / f"ziglang-0-py3-none-manylinux_2_28_{_MACHINE}.whl"
    with zipfile.ZipFile(zig, "w") as wheel:
        wheel.writestr("ziglang/zig", b"")
    locked = replace(kernel_samples.locked(triton), version=version)
    lock = kernel_samples.lock(locked, locked, kernel_samples.locked(zig, "ziglang"))
    store = Store(tmp_path / "store")
    for path in (triton, zig):
        store.adopt(path, kernel_samples.locked(path).file.sha256)
    return KernelCompiler(lock, kernel_samples.SITE, store)


@pytest.mark.parametrize("version", ["3.6.0", "3.8.0"])
def test_what_triton_says_is_in_the_refusal(tmp_path: Path, version: str) -> None:
    with compiler(tmp_path, version) as bench:
        with pytest.raises(Refused) as caught:
            list(bench.entries(kernel_samples.WANTED))
        directory = bench.directory
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.expected) == ("NV313", "triton", "kernels that compile")
    assert found.found == "no such instruction"
    assert not directory.exists()


@pytest.mark.parametrize("version", ["3.7.1", "3.9.0"])
def test_a_release_that_nobody_knows_is_refused_before_it_runs(tmp_path: Path, version: str) -> None:
    with pytest.raises(Refused) as caught, compiler(tmp_path, version):
        pytest.fail("Triton was unpacked")
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.found) == ("NV313", "triton", version)
    assert found.expected == "a release whose kernels nvllm compiles ahead: 3.6, 3.8"
    assert "docs/kernels.md" in found.cure
