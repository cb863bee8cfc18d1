"""NV105: a patch file is not the one whose sha256 the series names."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import seriesfile
from support.series_samples import SHOWN, two_patches


def test_an_edited_patch_file_is_refused(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    file = directory / "0002-second.patch"
    named = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes(file.read_bytes().replace(b"two twenty", b"two 2twenty"))
    with pytest.raises(Refused) as caught:
        seriesfile.load(directory, SHOWN)
    (refusal,) = caught.value.refusals
    assert refusal.code == "NV105"
    assert refusal.where == f"{SHOWN}/0002-second.patch"
    assert refusal.expected == f"sha256 {named}"
    assert refusal.found == f"sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert "restore it from version control" in refusal.cure
    assert caught.value.exit_code == 2


def test_a_file_that_changes_after_loading_is_refused_when_it_is_read(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    series = seriesfile.load(directory, SHOWN)
    (directory / "0001-first.patch").write_bytes((directory / "0002-second.patch").read_bytes())
    with pytest.raises(Refused) as caught:
        seriesfile.diffs(directory, series.patches, SHOWN)
    assert [refusal.code for refusal in caught.value.refusals] == ["NV105"]
