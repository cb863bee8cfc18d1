"""NV301: a patch of the set does not apply to the pinned source."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import patching, seriesfile
from nvllm.patches.source import DirectoryTree
from support.series_samples import SHOWN, SOURCE, changed, two_patches, write_tree


def test_a_patch_that_does_not_apply_changes_nothing_and_names_file_hunk_and_line(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    series = seriesfile.load(directory, SHOWN)
    diffs = seriesfile.diffs(directory, series.patches, SHOWN)
    files = changed(two=(b"two 19\n", b"two nineteen\n"))
    tree = write_tree(tmp_path / "source", files)
    with pytest.raises(Refused) as caught:
        patching.apply_all(DirectoryTree(tree), list(diffs.values()))
    (refusal,) = caught.value.refusals
    assert refusal.code == "NV301"
    assert refusal.where == f"{SHOWN}/0002-second.patch: vllm/two.py @@ -17,7 +17,7 @@"
    assert refusal.expected == "line 19: 'two 19\\n'"
    assert refusal.found == "'two nineteen\\n'"
    assert "nvllm patch check" in refusal.cure
    assert caught.value.exit_code == 3
    assert {path: (tree / path).read_bytes() for path in SOURCE} == files


def test_a_patch_is_not_applied_twice(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    series = seriesfile.load(directory, SHOWN)
    first = seriesfile.diff(directory, series.patches[0], SHOWN)
    tree = DirectoryTree(write_tree(tmp_path / "source", SOURCE))
    with pytest.raises(Refused) as caught:
        patching.apply_all(tree, [first, first])
    assert [refusal.expected for refusal in caught.value.refusals] == ["line 20: 'one 20\\n'"]
