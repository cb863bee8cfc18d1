"""Containers of device code: what they hold, by their headers alone."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.refusal import Refused
from nvllm.kernels import fatbin
from nvllm.kernels.fatbin import Code
from support import codesamples

CODES = st.builds(
    Code,
    st.sampled_from(["ptx", "cubin"]),
    st.sampled_from(["sm_75", "sm_80", "sm_90a", "sm_100f", "sm_103a", "sm_120", "sm_120f", "sm_121a"]),
)


def test_a_container_of_nvidias_own_tool_reads_as_its_own_lister_says() -> None:
    (module,) = fatbin.modules(codesamples.library(codesamples.SAMPLE), "x.so")
    assert module == codesamples.SAMPLE_CODE


@given(st.lists(st.lists(CODES, max_size=4), max_size=4))
def test_every_module_is_found_in_its_order(modules: list[list[Code]]) -> None:
    data = codesamples.library(*(codesamples.container(codes) for codes in modules))
    assert fatbin.modules(data, "x.so") == tuple(tuple(codes) for codes in modules)


def test_a_library_without_device_code_has_no_modules() -> None:
    data = codesamples.library(codesamples.SAMPLE, section=".nv_fatbin_not")
    assert fatbin.modules(data, "x.so") == ()


@given(st.data())
def test_a_damaged_library_is_refused_or_read_and_never_breaks(data: st.DataObject) -> None:
    whole = bytearray(codesamples.library(codesamples.container([Code("cubin", "sm_120"), Code("ptx", "sm_80")])))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(Refused):
        fatbin.modules(bytes(whole[:cut]), "x.so")


def test_an_offset_that_no_file_can_have_is_refused() -> None:
    data = bytearray(codesamples.library(codesamples.container([Code("cubin", "sm_120")])))
    data[40:48] = b"\xff" * 8  # where the section headers are
    with pytest.raises(Refused):
        fatbin.modules(bytes(data), "x.so")


def test_a_header_of_nothing_does_not_loop() -> None:
    data = bytearray(codesamples.library(codesamples.container([Code("cubin", "sm_120")])))
    data[64 + 16 + 4 : 64 + 16 + 8] = bytes(4)
    with pytest.raises(Refused):
        fatbin.modules(bytes(data), "x.so")


def test_a_container_without_a_length_does_not_loop() -> None:
    data = bytearray(codesamples.library(codesamples.container([Code("cubin", "sm_120")])))
    data[64 + 6 : 64 + 16] = bytes(10)  # the size of its header, and of what follows
    with pytest.raises(Refused):
        fatbin.modules(bytes(data), "x.so")


def test_sections_that_overlap_are_not_read_once_each() -> None:
    data = codesamples.library(codesamples.container([Code("cubin", "sm_120")]))
    headers = int.from_bytes(data[40:48], "little")
    section = data[headers + 64 : headers + 128]
    more = bytearray(data + section * 10_000)
    more[headers + 64 * 3 :] = section * 10_000
    more[60:62] = (10_003).to_bytes(2, "little")
    with pytest.raises(Refused) as caught:
        fatbin.modules(bytes(more), "x.so")
    assert caught.value.refusals[0].found == "two sections that overlap at 0x40"


def test_padding_is_passed_at_once() -> None:
    container = codesamples.container([Code("cubin", "sm_120")])
    data = codesamples.library(container + bytes(8 << 20), container)
    assert fatbin.modules(data, "x.so") == ((Code("cubin", "sm_120"),),) * 2
