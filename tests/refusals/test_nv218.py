"""NV218, not compiled: the image's vLLM is compiled, and its lock names no wheel of it yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.lock import LockedFile
from nvllm.core.paths import Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.image.builder import ImageBuilder
from nvllm.image.identity import Build
from support import locks
from support.plansamples import SPEC, places

SOURCE = LockedFile(f"owner/fork/archive/{locks.COMMIT}.tar.gz", locks.sha("source"), 10, "github")


@pytest.mark.parametrize(
    "make",
    [
        ImageBuilder.image,
        ImageBuilder.upper,
        lambda maker, build: maker.part(build, "patches"),
        ImageBuilder.kernels,
    ],
    ids=["image", "upper", "part", "kernels"],
)
def test_a_build_before_the_wheel_is_there(tmp_path: Path, make: Callable[[ImageBuilder, Build], object]) -> None:
    vllm = dataclasses.replace(locks.GOOD.vllm, source=SOURCE, differs=())
    lock = dataclasses.replace(locks.GOOD, vllm=vllm, wheels=locks.GOOD.wheels[:1])
    maker = ImageBuilder(Project(tmp_path), places(tmp_path), Silent(), offline=False)
    with pytest.raises(Refused) as caught:
        make(maker, Build(SPEC, lock, ()))
    (found,) = caught.value.refusals
    assert (found.code, found.where) == ("NV218", "demo: lock, .wheels")
    assert found.cure == "compile it, as docs/demo.md shows, and lock it: nvllm lock demo --compiled WHEEL"
    assert not (tmp_path / "home").exists()  # before anything is fetched
