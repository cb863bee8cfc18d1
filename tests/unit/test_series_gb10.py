"""The series of the fork, as far as it can be judged without the fork's source, which no package index has.

What its patches do was seen on the fork's real classes by hand (docs/gb10.md). What ties them to the tests that run
everywhere is here: each makes the very change of its twin in the series v0.21.0, whose tests run on real source.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.patches import patching, patchset, seriesfile, unified
from support import series_samples
from support.series_samples import MappingTree

_ROOT = Path(__file__).parents[2]
_DIRECTORY = _ROOT / "patches" / "nvllm-01ca406"
_SHOWN = "patches/nvllm-01ca406"
_TWINS = _ROOT / "patches" / "v0.21.0"

SERIES = seriesfile.load(_DIRECTORY, _SHOWN)
CARRIED = [patch.id for patch in SERIES.patches if patch.status == "carried"]
ONLY_THERE = {"vllm/nvllm/__init__.py"}
"""What a twin adds that the fork has already: a package of that name."""


def test_the_series_is_whole_and_every_proof_exists() -> None:
    assert SERIES.commit == "01ca4062ce8e1c7d6c10187c2414b43c2e1b8e20"
    assert {patch.id: patch.status for patch in SERIES.patches} == {
        "switches": "carried",
        "page-zeroer": "upstream",
        "mamba-block-ids": "carried",
        "scheduler-drain": "carried",
        "gdn-first-chunk": "carried",
        "stale-block-table": "upstream",
        "null-block-padding": "rejected",
        "api-key-out-of-compile-key": "carried",
        "sentinels": "carried",
        "token-ids-in-vocabulary": "carried",
        "request-bounds": "carried",
        "grammar-failure-fails-request": "carried",
        "grammar-backends": "carried",
        "blank-bad-words": "carried",
        "request-shapes": "carried",
        "grammar-refusal": "carried",
        "messages-errors": "carried",
    }
    assert all(patch.proved_by or patch.evidence or patch.reason for patch in SERIES.patches)
    assert series_samples.unproved(SERIES, _ROOT) == ()


def test_what_the_other_series_has_besides_needs_our_zeroer_or_is_not_known_of_the_fork() -> None:
    twins = seriesfile.load(_TWINS, "patches/v0.21.0")
    assert {patch.id for patch in twins.patches} - {patch.id for patch in SERIES.patches} == {
        "poison",
        "grammar-end",  # the fork goes on, without the grammar
        "allowed-token-rows",  # nobody looked whether the fork has these faults
    }
    poison = twins.patch("poison")
    assert poison is not None
    assert "page-zeroer" in poison.requires


@pytest.mark.parametrize("name", CARRIED)
def test_a_patch_changes_what_its_twin_of_v0210_changes(name: str) -> None:
    ours, twin = changed_lines(_DIRECTORY, name), changed_lines(_TWINS, name)
    assert ours == {path: lines for path, lines in twin.items() if path not in ONLY_THERE}
    assert ours


def changed_lines(directory: Path, name: str) -> dict[str, list[str]]:
    """Return the lines that a patch takes and adds, by file, in their order."""
    (path,) = directory.glob(f"[0-9]*-{name}.patch")
    found: dict[str, list[str]] = {}
    file = ""
    for line in path.read_text().splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif line[:1] in {"+", "-"} and not line.startswith("--- "):
            found.setdefault(file, []).append(line)
    return found


def test_the_patch_files_are_as_nvllm_writes_them() -> None:
    for patch in SERIES.patches:
        if patch.status == "carried":
            diff = seriesfile.diff(_DIRECTORY, patch, _SHOWN)
            assert unified.render(diff) == (_DIRECTORY / str(patch.file)).read_bytes()


def test_the_hunks_apply_to_their_own_old_side_and_are_then_there() -> None:
    for diff in seriesfile.diffs(_DIRECTORY, SERIES.patches, _SHOWN).values():
        before = series_samples.old_side(diff)
        changes = patching.apply(MappingTree(before), diff)
        assert patching.reverses(MappingTree(changes), diff)
        assert not patching.reverses(MappingTree(before), diff)


def test_all_that_is_carried_is_a_patch_set() -> None:
    assert [patch.id for patch in patchset.choose(SERIES, CARRIED)] == CARRIED
    assert not any(seriesfile.native(patch) for patch in SERIES.patches)
