"""NV607, not proved: a spec demands proved patches, and a patch has no record, or an old one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.paths import Project
from nvllm.core.spec import ImageSpec
from nvllm.patches import proved, seriesfile
from nvllm.patches.proved import Arm, ProofRecord
from nvllm.spec import specfile
from support.series_samples import two_patches
from support.specs import spoiled


@pytest.fixture
def spec(tmp_path: Path) -> ImageSpec:
    """A spec that demands proofs, over a small series of two patches."""
    two_patches(tmp_path)
    text = spoiled("  series: ", "  proved: required\n  series: ")
    loaded = specfile.parse(text, "images/demo.yaml")
    return replace(loaded, patches=replace(loaded.patches, series="v1", enable=("first", "second")))


def test_each_patch_without_a_record_that_holds_is_refused(tmp_path: Path, spec: ImageSpec) -> None:
    project = Project(tmp_path)
    patches = seriesfile.load(project.series("v1"), "patches/v1").patches
    refused = list(proved.demanded(project, spec, patches))
    assert [(one.code, one.found) for one in refused] == [("NV607", "unproved"), ("NV607", "unproved")]
    assert refused[0].where == "images/demo.yaml: .patches.proved"
    assert refused[0].cure == "nvllm patch prove demo first"
    assert list(proved.demanded(project, replace(spec, patches=replace(spec.patches, proved=None)), patches)) == []
    first = patches[0]
    arms = Arm("sha256:1", "failed"), Arm("sha256:2", "passed")
    records = [
        ProofRecord(
            first.id, node, "proved", *arms, str(first.sha256), "0" * 64, machine="cpu", made="2026-11-23T15:00:00Z"
        )
        for node in first.proved_by
    ]
    proved.write(project, "v1", records)
    assert [one.found for one in proved.demanded(project, spec, patches)] == ["stale", "unproved"]
