"""What a cubin says that it is for, on headers as ptxas 12.8 and 12.9 wrote them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.kernels import cubin
from support import kernel_samples


@pytest.mark.parametrize("target", sorted(kernel_samples.FLAGS))
def test_the_target_is_the_one_that_ptxas_was_told(target: str) -> None:
    assert cubin.target(kernel_samples.cubin(target)) == target


def test_code_for_a_family_has_the_header_of_plain_code() -> None:
    assert cubin.target(kernel_samples.elf(190, 0x6006402, 8)) == "sm_100"


@pytest.mark.parametrize("data", [b"", b"\x7fELF", kernel_samples.elf(62), b"\0" * 64])
def test_what_is_no_cubin_is_for_nothing(data: bytes) -> None:
    assert cubin.target(data) is None


@given(st.binary(max_size=100))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    assert cubin.target(data) is None or data.startswith(b"\x7fELF")
