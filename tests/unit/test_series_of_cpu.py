"""The series of vLLM v0.28.0, as far as it can be judged without vLLM's source.

What the patches do to the real source is in ``tests/e2e/test_series_source.py``.
"""

from __future__ import annotations

from pathlib import Path

from nvllm.patches import patching, patchset, seriesfile, unified
from nvllm.spec import specfile
from support import series_samples
from support.series_samples import MappingTree

_ROOT = Path(__file__).parents[2]
_DIRECTORY = _ROOT / "patches" / "v0.28.0"
_SHOWN = "patches/v0.28.0"


def test_the_series_is_whole_and_every_proof_exists() -> None:
    series = seriesfile.load(_DIRECTORY, _SHOWN)
    assert (series.version, series.commit) == ("0.28.0", "2cf0a6915ce544dc493a0990f2ea38d81601128a")
    assert {patch.id: patch.status for patch in series.patches} == {
        "aot-load-guard": "carried",
        "api-key-out-of-compile-key": "carried",
        "scheduler-drain": "upstream",
        "switches": "carried",
        "page-zeroer": "carried",
        "mamba-block-ids": "carried",
        "gdn-first-chunk": "carried",
        "stale-block-table": "upstream",
        "null-block-padding": "rejected",
        "sentinels": "carried",
        "poison": "carried",
        "conv-weight-layout": "carried",
        "eager-sampler": "carried",
        "inspect-in-process": "carried",
        "engine-core-fork": "carried",
        "token-ids-in-vocabulary": "carried",
        "request-bounds": "carried",
        "grammar-backends": "carried",
        "grammar-end": "carried",
        "eager-logprobs": "carried",
        "blank-bad-words": "carried",
        "request-shapes": "carried",
        "grammar-refusal": "carried",
    }
    assert all(patch.proved_by for patch in series.patches)
    assert series_samples.unproved(series, _ROOT) == ()


def test_the_default_image_enables_a_closed_set_of_it() -> None:
    spec = specfile.load(_ROOT / "images/cpu.yaml", "images/cpu.yaml")
    series = seriesfile.load(_DIRECTORY, _SHOWN)
    assert (spec.vllm.version, spec.vllm.commit) == (series.version, series.commit)
    chosen = patchset.choose(series, spec.patches.enable)
    assert {patch.id for patch in series.patches if patch.status == "carried"} - {patch.id for patch in chosen} == {
        "poison"
    }
    assert not list(seriesfile.touching(series, spec.vllm.differs, _SHOWN))
    assert not any(seriesfile.native(patch) for patch in chosen)
    for name, profile in spec.profiles.items():
        assert {*profile.sentinels} <= patchset.sentinels(chosen), name


def test_the_patch_files_are_as_nvllm_writes_them() -> None:
    series = seriesfile.load(_DIRECTORY, _SHOWN)
    for patch in series.patches:
        if patch.status == "carried":
            diff = seriesfile.diff(_DIRECTORY, patch, _SHOWN)
            assert unified.render(diff) == (_DIRECTORY / str(patch.file)).read_bytes()


def test_the_hunks_apply_to_their_own_old_side_and_are_then_there() -> None:
    series = seriesfile.load(_DIRECTORY, _SHOWN)
    for diff in seriesfile.diffs(_DIRECTORY, series.patches, _SHOWN).values():
        before = series_samples.old_side(diff)
        changes = patching.apply(MappingTree(before), diff)
        assert patching.reverses(MappingTree(changes), diff)
        assert not patching.reverses(MappingTree(before), diff)
