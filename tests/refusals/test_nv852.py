"""NV852: the output directory holds another run, or something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.evidence import summary
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


def test_the_evidence_of_another_program_is_never_removed(tmp_path: Path) -> None:
    """Its manifest has the same name. Nor is a run of nvllm in which somebody has kept a file of their own."""
    theirs, mixed = tmp_path / "theirs", tmp_path / "mixed"
    theirs.mkdir()
    (theirs / "runner_manifest.json").write_text('{"runner": "another", "arms": ["mixed", "neither"]}')
    EvidenceDirectory(mixed).begin(manifest((), ("a",)), force=False)
    (mixed / "thesis.txt").write_text("years of work")
    for path, codes in ((theirs, {"NV853"}), (mixed, {"NV852"})):
        before = sorted(path.rglob("*"))
        with pytest.raises(Refused) as caught:
            EvidenceDirectory(path).begin(manifest((), ("a",), runs=7), force=True)
        assert {refusal.code for refusal in caught.value.refusals} == codes
        assert sorted(path.rglob("*")) == before


def test_a_run_does_not_go_on_on_another_host(tmp_path: Path) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    first = manifest((), ("a",))
    directory.begin(first, force=False)
    same = replace(first.host, kernel="another", dirty=not first.host.dirty, memory=first.host.memory + 1)
    assert directory.begin(replace(first, host=same), force=False) == first
    other = replace(first.host, processor="another", gpus=("a GPU, 1.0",), commit="c" * 40)
    with pytest.raises(Refused) as caught:
        directory.begin(replace(first, host=other), force=False)
    assert [refusal.where for refusal in caught.value.refusals] == [
        f"{directory.path}: host.{name}" for name in ("commit", "gpus", "processor")
    ]
    assert "another" in caught.value.refusals[-1].expected
    assert all("--anyway" in refusal.cure for refusal in caught.value.refusals)


def test_a_run_that_goes_on_on_another_host_anyway_says_so(tmp_path: Path) -> None:
    directory = EvidenceDirectory(tmp_path / "run")
    first = manifest((), ("a",))
    assert directory.begin(first, force=False, anyway=True).other_hosts == ()
    other = replace(first, host=replace(first.host, processor="another", commit="c" * 40))
    mixed = directory.begin(other, force=False, anyway=True)
    assert (mixed.host, mixed.other_hosts) == (first.host, (other.host,))
    assert directory.manifest() == mixed
    for again in (first, other):  # both hosts are known now
        assert directory.begin(again, force=False) == mixed
        assert directory.begin(again, force=False, anyway=True) == mixed
    with pytest.raises(Refused) as caught:
        directory.begin(replace(other, runs=7), force=False, anyway=True)
    assert [refusal.where for refusal in caught.value.refusals] == [f"{directory.path}: runs"]
    third = replace(first, host=replace(first.host, engine="another"))
    with pytest.raises(Refused) as caught:
        directory.begin(third, force=False)
    assert [refusal.where for refusal in caught.value.refusals] == [f"{directory.path}: host.engine"]
    text = dict(summary.facts(mixed))["mixed"]
    assert "Begun on x86_64, GenuineIntel" in text
    assert f"went on, by --anyway, on x86_64, another, Docker 27, commit {'c' * 12}" in text
