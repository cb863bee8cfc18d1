"""NV212, device code unreadable: a library's containers are damaged, or of a kind that nvllm does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.kernels import devicecode
from support import codesamples
from support.codesamples import code

GOOD = codesamples.library(codesamples.container([code("cubin sm_120")]))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x7fELF\x01\x01" + bytes(100), "no ELF file of 64 bits"),
        (b"#!/bin/sh\n" * 10, "no ELF file of 64 bits"),
        (b"short", "buffer"),
        (GOOD.replace(b"\x50\xed\x55\xba", b"\x51\xed\x55\xba"), "bytes at 0x40 that are not a complete container"),
        (codesamples.library(codesamples.container([code("cubin sm_120")], kind=7)), "an entry of kind 7 at 0x50"),
        (codesamples.library(codesamples.SAMPLE[:-64]), "bytes at 0x40 that are not a complete container"),
    ],
)
def test_a_library_that_cannot_be_read(data: bytes, found: str, tmp_path: Path) -> None:
    wheel = codesamples.wheel(tmp_path, {"p/x.so": data})
    with pytest.raises(Refused) as refused:
        devicecode.libraries(wheel, "p-1.0.whl")
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.where) == ("NV212", "p-1.0.whl: p/x.so")
    assert found in refusal.found
