"""NV315, kernels layer wrong: code in a kernels layer is for another target, or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.kernels import check as kernelcheck
from nvllm.kernels import kernellayer, stubs
from support import kernel_samples
from support.kernel_samples import Bench


def refusals(files: dict[str, bytes], tmp_path: Path) -> list[tuple[str, str, str]]:
    with pytest.raises(Refused) as caught:
        kernelcheck.check(files, kernel_samples.WANTED, Bench(tmp_path))  # type: ignore[arg-type]  # all that a check asks
    assert {one.code for one in caught.value.refusals} == {"NV315"}
    return [(one.where.removeprefix("kernels layer: "), one.expected, one.found) for one in caught.value.refusals]


def test_code_for_another_target(tmp_path: Path) -> None:
    place = f"{stubs.base32(kernel_samples.hashed('sm_121a'))}/zero.cubin"
    found = refusals(kernel_samples.files(sm_121a="sm_120a"), tmp_path)
    assert found == [(place, "code for sm_121a", "for sm_120a")]


def test_a_module_that_is_missing_or_for_another_machine(tmp_path: Path) -> None:
    files = kernel_samples.files()
    first, second = (path for path in files if path.endswith(".so"))
    del files[first]
    files[second] = kernel_samples.elf(183)
    expected = "a module in C for Python 3.12 on x86_64"
    assert sorted(refusals(files, tmp_path)) == sorted(
        [(first, expected, "no such file"), (second, expected, "another file")]
    )


def test_what_no_launch_looks_for(tmp_path: Path) -> None:
    found = refusals({**kernel_samples.files(), "KEY/extra.cubin": kernel_samples.cubin("sm_90a")}, tmp_path)
    assert found == [("KEY/extra.cubin", "only files that a launch loads", "a file that no launch loads")]


def test_a_path_of_the_host_and_another_key(tmp_path: Path) -> None:
    files = {**kernel_samples.files(), kernellayer.KEY: b'{"key": "other", "from": "%s"}' % bytes(tmp_path)}
    assert sorted(refusals(files, tmp_path)) == [
        (kernellayer.KEY, "key 3.6.0-key..., as Triton makes it", "other"),
        (kernellayer.KEY, "no path of the host", str(tmp_path)),
    ]
