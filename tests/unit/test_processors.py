"""The class of processor that a run of the tests prints."""

from __future__ import annotations

import pytest

from support import processors


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "avx2 avx512f avx512_bf16 amx_bf16 amx_tile amx_int8", "amx"),
        ("x86_64", "avx2 avx512f avx512_bf16 avx512_fp16", "avx512_bf16"),
        ("x86_64", "avx2 avx512f", "avx512"),
        ("x86_64", "avx avx2 fma", "avx2"),
        ("x86_64", "sse4_2 avx", "x86_64"),
        ("aarch64", "", "arm64"),
        ("riscv64", "", "riscv64"),
    ],
)
def test_the_class_is_the_first_that_fits(machine: str, flags: str, expected: str) -> None:
    assert processors.of(machine, {*flags.split()}) == expected


def test_the_run_says_what_it_ran_on_and_what_not() -> None:
    line = processors.summary()
    assert line.startswith(f"processor: {processors.here()}; nothing was run on ")
    assert all(name in line for name in processors.CLASSES)
