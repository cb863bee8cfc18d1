"""NV201, lock missing: the image has a spec, but `nvllm lock` never wrote its lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.lock import lockdoc


def test_a_lock_that_was_never_written(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        lockdoc.read(tmp_path / "demo.lock.json", "manifests/demo.lock.json")
    (found,) = refused.value.refusals
    assert (found.code, found.where) == ("NV201", "manifests/demo.lock.json")
    assert (found.expected, found.found) == ("a lock", "no file")
    assert found.cure == "nvllm lock demo"
    assert refused.value.exit_code == 3


def test_the_cure_names_the_platform_of_the_lock(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        lockdoc.read(tmp_path / "demo.arm64.lock.json", "manifests/demo.arm64.lock.json")
    assert [found.cure for found in refused.value.refusals] == ["nvllm lock demo --platform linux/arm64"]
