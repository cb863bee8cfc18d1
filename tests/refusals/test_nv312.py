"""NV312, another compiler: Triton on the host would not make what the image's Triton makes."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.kernels import kernellayer
from nvllm.kernels.kernellayer import KernelCompiler
from nvllm.layers.bytecode import Interpreter
from nvllm.sources.store import Store
from support import kernel_samples

HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"


def test_wheels_of_one_version_that_differ_in_what_compiles(tmp_path: Path) -> None:
    image = kernel_samples.triton(tmp_path / "triton-3.6.0-cp312-cp312-manylinux_2_28_x86_64.whl")
    name = f"triton-3.6.0-{HERE}-{HERE}-manylinux_2_28_{platform.machine()}.whl"
    (tmp_path / "host").mkdir()
    host = kernel_samples.triton(tmp_path / "host" / name, compiler=b"another compiler")
    zig = kernel_samples.triton(tmp_path / f"ziglang-0-py3-none-manylinux_2_28_{platform.machine()}.whl")
    lock = kernel_samples.lock(
        kernel_samples.locked(image), kernel_samples.locked(host), kernel_samples.locked(zig, "ziglang")
    )
    store = Store(tmp_path / "store")
    for path in (image, host, zig):
        store.adopt(path, kernel_samples.locked(path).file.sha256)
    with pytest.raises(Refused) as caught, KernelCompiler(lock, "site", store):
        pytest.fail("the workbench was entered")
    (found,) = caught.value.refusals
    assert found.code == "NV312"
    assert found.where == f"{image.name}: triton/compiler/compiler.py"  # and not libtriton.so, which differs always
    assert found.expected.endswith("as in the host's wheel")


def test_a_ptxas_that_does_not_say_its_version_as_it_used_to() -> None:
    with pytest.raises(Refused, match="NV312") as caught:
        kernellayer.version(b"release 14", "ptxas")
    assert caught.value.refusals[0].where == "ptxas"


def test_a_ptxas_that_the_loader_of_the_base_does_not_start(tmp_path: Path) -> None:
    """Where Triton runs in the image's base, so does its ptxas."""
    tree = tmp_path / "tree"
    (tree / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tree / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2").touch()
    triton = kernel_samples.triton(tmp_path / f"triton-3.6.0-{HERE}-{HERE}-manylinux_2_28_{platform.machine()}.whl")
    zig = kernel_samples.triton(tmp_path / f"ziglang-0-py3-none-manylinux_2_28_{platform.machine()}.whl")
    lock = kernel_samples.lock(
        kernel_samples.locked(triton), kernel_samples.locked(triton), kernel_samples.locked(zig, "ziglang")
    )
    store = Store(tmp_path / "store")
    for path in (triton, zig):
        store.adopt(path, kernel_samples.locked(path).file.sha256)
    interpreter = Interpreter(tree, "3.12")
    with pytest.raises(Refused) as caught, KernelCompiler(lock, "site", store, interpreter):
        pytest.fail("the workbench was entered")
    (found,) = caught.value.refusals
    assert (found.code, found.where) == ("NV312", "ptxas")
    assert found.found == "not a program for a machine that images support"
