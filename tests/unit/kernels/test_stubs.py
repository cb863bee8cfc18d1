"""The modules in C: under which keys Triton looks for them, and what the compiler is told."""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nvllm.kernels import stubs
from nvllm.kernels.stubs import CCompiler, Platform
from support import kernel_samples

HERE = Platform(platform.machine(), f"{sys.version_info.major}.{sys.version_info.minor}")


def test_the_suffix_is_that_of_extension_modules() -> None:
    assert HERE.suffix == sysconfig.get_config_var("EXT_SUFFIX")


def test_this_host_looks_under_one_of_the_keys() -> None:
    # What Triton 3.6 asks of the platform, in its order.
    said = ",".join([platform.machine(), platform.system(), *platform.architecture()])
    key = stubs.base32(hashlib.sha256(f"source{said}".encode()).hexdigest())
    assert key in stubs.keys("source", HERE)


@given(st.text(), st.text())
def test_another_source_has_other_keys(one: str, other: str) -> None:
    same = set(stubs.keys(one, HERE)) & set(stubs.keys(other, HERE))
    assert bool(same) == (one == other)
    assert len(set(stubs.keys(one, HERE))) == 2


def test_a_module_is_linked_to_the_names_that_it_needs_of_the_driver(tmp_path: Path) -> None:
    """A script that writes down how it was called stands for the compiler, which is 100 MB to fetch."""
    zig = tmp_path / "zig"
    zig.write_text(
        '#!/bin/sh\nfor last; do :; done\nprintf "%s\\n" "$PWD" "$@" > "${last%.c}.called"\necho module > launcher.so\n'
    )
    zig.chmod(0o755)
    include = [tmp_path / "python", tmp_path / "cuda"]
    compiler = CCompiler(zig, include, kernel_samples.PLATFORM, tmp_path / "scratch")
    source = "void f(void) { cuInit(0); cuCtxGetCurrent(0); CUresult r; execute(cuda); }"
    assert compiler.module("launcher", source) == b"module\n"
    (work,) = (tmp_path / "scratch").iterdir()
    assert (work / "names.c").read_text() == "void cuCtxGetCurrent(void) {}\nvoid cuInit(void) {}\n"
    assert (work / "launcher.c").read_text() == source
    called = (work / "libcuda.so.1.called").read_text().splitlines()
    assert called[0] == str(work)
    assert [*map(str, include)] == [called[at + 1] for at, one in enumerate(called) if one == "-I"]
    assert called[-2:] == ["launcher.c", "libcuda.so.1"]  # a relative name: __FILE__ is part of the bytes
