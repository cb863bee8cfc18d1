"""Proving a kernels layer, with Triton's answer known; what it finds wrong is in tests/refusals/test_nv315.py."""

from __future__ import annotations

from pathlib import Path

from nvllm.kernels import check as kernelcheck
from nvllm.kernels import layer as kernels
from nvllm.kernels.layer import Kernel
from support import kernel_samples
from support.kernel_samples import Bench


def test_the_content_of_a_layer_is_what_lies_in_the_cache(tmp_path: Path) -> None:
    content = {f"{kernels.ROOT}/KEY/a.cubin": b"code", "opt/venv/lib/module.py": b"", "opt/nvllm/gate.py": b""}
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
