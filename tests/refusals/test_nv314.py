"""NV314, stub not compiled: a module in C that a kernel is launched by does not compile.

The C compiler is 100 MB to fetch; a script that fails as it would stands in its place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.kernels.stubs import CCompiler
from support import kernel_samples


def test_the_words_of_the_compiler_are_in_the_refusal(tmp_path: Path) -> None:
    zig = tmp_path / "zig"
    zig.write_text('#!/bin/sh\necho "$*" >&2\n[ "$9" = -Wl,-soname,libcuda.so.1 ] && exit 0\nexit 1\n')
    zig.chmod(0o755)
    compiler = CCompiler(zig, [tmp_path / "cuda"], kernel_samples.PLATFORM, tmp_path / "scratch")
    with pytest.raises(Refused) as caught:
        compiler.module("launcher", "int x = cuInit(0);")
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.expected) == ("NV314", "launcher.c", "a module in C that compiles")
    assert "-target x86_64-linux-gnu.2.31 -mcpu=baseline -shared" in found.found
