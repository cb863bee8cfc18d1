"""The records of proofs: written beside the series, read back, and stale when patch or test change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.paths import Project
from nvllm.core.refusal import Refused
from nvllm.patches import proved, seriesfile
from nvllm.patches.proved import Arm, ProofRecord, Verdict
from nvllm.patches.series import Patch
from support.series_samples import two_patches, write_tree

ROOT = Path(__file__).parents[3]
MACHINE, MADE = "cpu-x86_64-0123456789ab", "2026-11-23T15:00:00Z"


@pytest.fixture
def first(tmp_path: Path) -> Patch:
    """The first patch of a small series, which names one test."""
    patch = seriesfile.load(two_patches(tmp_path), "patches/v1").patches[0]
    write_tree(tmp_path, {node.partition("::")[0]: b"def test(): ...\n" for node in patch.proved_by})
    return patch


def proof(root: Path, patch: Patch, verdict: Verdict = "proved") -> ProofRecord:
    (node,) = patch.proved_by
    arms = Arm("sha256:1", "failed", "AssertionError: 1"), Arm("sha256:2", "passed")
    return ProofRecord(
        patch.id, node, verdict, *arms, str(patch.sha256), proved.file_sha256(root, node), machine=MACHINE, made=MADE
    )


def test_a_record_is_read_as_it_was_written(tmp_path: Path, first: Patch) -> None:
    project = Project(tmp_path)
    assert proved.read(project, "v1").proofs == ()
    proved.write(project, "v1", [proof(tmp_path, first, "passes-without")])
    other = replace(proof(tmp_path, first), patch="another")
    proved.write(project, "v1", [proof(tmp_path, first), other])
    assert proved.read(project, "v1").proofs == (other, proof(tmp_path, first))
    assert proved.read(replace(project, own=False), "v1").proofs == ()  # that project has no tests to compare with
    seriesfile.load(project.series("v1"), "patches/v1")  # a record is no stray file of the series


def test_a_patch_is_proved_until_it_or_its_test_changes(tmp_path: Path, first: Patch) -> None:
    record = proof(tmp_path, first)
    assert proved.state(tmp_path, first, ()) == "unproved"
    assert proved.state(tmp_path, first, [replace(record, verdict="other-error")]) == "unproved"
    assert proved.state(tmp_path, replace(first, proved_by=(*first.proved_by, "tests/b.py::b")), [record]) == "unproved"
    assert proved.state(tmp_path, first, [record]) == "proved"
    assert proved.state(tmp_path, replace(first, sha256=64 * "0"), [record]) == "stale"
    (tmp_path / record.node.partition("::")[0]).write_text("def test(): assert 1\n")
    assert proved.state(tmp_path, first, [record]) == "stale"


def test_a_damaged_record_is_refused(tmp_path: Path, first: Patch) -> None:
    project = Project(tmp_path)
    proved.write(project, "v1", [proof(tmp_path, first)])
    path = project.series("v1") / proved.NAME
    path.write_text(path.read_text().replace('"verdict": "proved"', '"verdict": "believed"'))
    with pytest.raises(Refused) as refused:
        proved.read(project, "v1")
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.cure) == (
        "NV104",
        "remove it, and prove the patches again: rm patches/v1/proofs.json",
    )


def test_our_own_records_are_of_our_series_and_name_no_host() -> None:
    for path in sorted((ROOT / "patches").glob(f"*/{proved.NAME}")):
        series = seriesfile.load(path.parent, path.parent.name)
        named = {(patch.id, node) for patch in series.patches if patch.status == "carried" for node in patch.proved_by}
        kept = proved.read(Project(ROOT), path.parent.name)
        assert {(proof.patch, proof.node) for proof in kept.proofs} <= named
        assert [word for word in ("/tmp/", "/root/", "/home/", str(ROOT)) if word in path.read_text()] == []
