"""NV852: the output directory holds another run, or something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.evidence.directory import EvidenceDirectory
from support.evidence_samples import manifest


def test_another_run_is_in_the_way(tmp_path: Path) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    first = manifest((), ("a",))
    directory.begin(first, force=False)
    other = replace(first, build_hash="9f" * 32, runs=7)
    with pytest.raises(Refused) as caught:
        directory.begin(other, force=False)
    assert [one.code for one in caught.value.refusals] == ["NV852", "NV852"]
    assert [one.where for one in caught.value.refusals] == [
        f"{directory.path}: {name}" for name in ("build_hash", "runs")
    ]
    assert caught.value.exit_code == 3
    assert directory.manifest() == first
    directory.begin(other, force=True)
    assert directory.manifest() == other


def test_what_is_no_run_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(Refused) as caught:
        EvidenceDirectory(tmp_path).begin(manifest((), ("a",)), force=True)
    assert [one.code for one in caught.value.refusals] == ["NV852"]
    assert (tmp_path / "thesis.txt").exists()
