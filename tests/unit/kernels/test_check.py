"""Proving a kernels layer, with Triton's answer known; what it finds wrong is in tests/refusals/test_nv315.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.kernels import check as kernelcheck
from nvllm.kernels import kernellayer
from nvllm.kernels.kernellayer import Kernel
from support import kernel_samples
from support.kernel_samples import Bench


def test_the_content_of_a_layer_is_what_lies_in_the_cache(tmp_path: Path) -> None:
    content = {f"{kernellayer.ROOT}/KEY/a.cubin": b"code", "opt/venv/lib/module.py": b"", "opt/nvllm/gate.py": b""}
    assert kernelcheck.content(kernel_samples.layer(tmp_path / "layer.tar", content)) == {"KEY/a.cubin": b"code"}


def test_kernels_are_listed_by_what_they_are_for() -> None:
    files = {
        "B/one.cubin": kernel_samples.cubin("sm_120a"),
        "A/one.cubin": kernel_samples.cubin("sm_121a"),
        "A/one.json": b"",
    }
    assert kernelcheck.listed({**files, "C/all.cubin": b"?"}) == (
        Kernel("all", "nothing", "C", 1),
        Kernel("one", "sm_120a", "B", 64),
        Kernel("one", "sm_121a", "A", 64),
    )


def test_a_layer_that_is_right_is_proved(tmp_path: Path) -> None:
    files = kernel_samples.files()
    proof = kernelcheck.check(files, kernel_samples.WANTED, Bench(tmp_path))  # type: ignore[arg-type]  # all that a check asks
    assert [(one.name, one.target) for one in proof.kernels] == [("zero", "sm_120a"), ("zero", "sm_121a")]
    assert proof.launches == 400
    assert list(proof.stubs) == sorted(path for path in files if path.endswith(".so"))
    laid = {str(path.relative_to(tmp_path / "scratch")) for path in (tmp_path / "scratch").rglob("*") if path.is_file()}
    assert laid == files.keys()  # what Triton was shown


@pytest.mark.parametrize("target", sorted(kernel_samples.FLAGS))
def test_the_target_is_the_one_that_ptxas_was_told(target: str) -> None:
    assert kernelcheck.cubin_target(kernel_samples.cubin(target)) == target


@pytest.mark.parametrize(
    ("told", "target"), [("sm_120a", "sm_120a"), ("sm_120", "sm_120"), ("sm_120f", "sm_120"), ("sm_121a", "sm_120")]
)
def test_without_a_flag_the_target_is_in_the_words_that_ptxas_was_started_with(told: str, target: str) -> None:
    """As ptxas 13.3 writes it; of a target that the header does not have, nothing is taken."""
    note = f"\0ptxas-blackwell\0-v  -lineinfo  -arch {told} \0".encode()
    assert kernelcheck.cubin_target(kernel_samples.cubin("sm_120") + note) == target


def test_code_for_a_family_has_the_header_of_plain_code() -> None:
    assert kernelcheck.cubin_target(kernel_samples.elf(190, 0x6006402, 8)) == "sm_100"


@pytest.mark.parametrize("data", [b"", b"\x7fELF", kernel_samples.elf(62), b"\0" * 64])
def test_what_is_no_cubin_is_for_nothing(data: bytes) -> None:
    assert kernelcheck.cubin_target(data) is None


@given(st.binary(max_size=100))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    assert kernelcheck.cubin_target(data) is None or data.startswith(b"\x7fELF")
