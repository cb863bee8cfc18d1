"""The series of image `cpu`, that of 0.28.0 and that of 0.33.0, as far as they can be judged without vLLM's source.

What the patches do to the real source is in ``tests/e2e/test_series_source.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.patches import patching, patchset, proofs, seriesfile, unified
from nvllm.spec import specfile
from support import series_samples
from support.series_samples import MappingTree
from support.specs import OLDER_CPU

_ROOT = Path(__file__).parents[2]
_SPECS = {"0.28.0": OLDER_CPU, "0.32.0": _ROOT / "images/cpu.yaml"}
_COMMITS = {"0.28.0": "2cf0a6915ce544dc493a0990f2ea38d81601128a", "0.32.0": "5df63a720", "0.33.0": "4ba787ec9"}
_UPSTREAM = {
    "0.28.0": set[str](),
    "0.32.0": {
        "api-key-out-of-compile-key",
        "gdn-first-chunk",
        "eager-sampler",
        "token-ids-in-vocabulary",
        "blank-bad-words",
    },
}
_UPSTREAM["0.33.0"] = _UPSTREAM["0.32.0"] | {
    "grammar-failure-fails-request",
    "messages-errors",
    "allowed-token-rows",
    "adapter-rows",
}
"""What was carried before, and that release has. Three of the last four are of v0.21.0."""

_NEW = {"0.32.0": {"adapter-prompt-logprobs", "adapter-rows"}}
"""What was written for that release."""

on_each = pytest.mark.parametrize("version", _COMMITS)


def _directory(version: str) -> Path:
    return _ROOT / "patches" / f"v{version}"


def _shown(version: str) -> str:
    return f"patches/v{version}"


@on_each
def test_the_series_is_whole_and_every_proof_exists(version: str) -> None:
    series = seriesfile.load(_directory(version), _shown(version))
    assert (series.version, series.commit) == (version, _COMMITS[version])
    carried = {
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
    assert {patch.id: patch.status for patch in series.patches} == carried | dict.fromkeys(
        _UPSTREAM[version], "upstream"
    ) | dict.fromkeys(_NEW.get(version, ()), "carried")
    assert all(patch.proved_by for patch in series.patches)
    assert series_samples.unproved(series, _ROOT) == ()


@pytest.mark.parametrize("version", ["0.21.0", *_COMMITS])
def test_a_proof_that_needs_the_helpers_of_the_tests_runs_on_the_host(version: str) -> None:
    """A container sees the directory of the test alone, and they lie beside it."""
    series = seriesfile.load(_directory(version), _shown(version))
    nodes = [node for patch in series.patches if patch.status == "carried" for node in patch.proved_by]
    needing = [node for node in nodes if "from support" in (_ROOT / node.partition("::")[0]).read_text()]
    assert needing
    assert [node for node in needing if proofs.HOST not in proofs.needs(_ROOT, node)] == []


@pytest.mark.parametrize("version", _SPECS)
def test_the_default_image_enables_a_closed_set_of_it(version: str) -> None:
    spec = specfile.parse(_SPECS[version].read_text(encoding="utf-8"), "images/cpu.yaml")
    series = seriesfile.load(_directory(version), _shown(version))
    assert (spec.vllm.version, spec.vllm.commit) == (series.version, series.commit)
    chosen = patchset.choose(series, spec.patches.enable)
    assert {patch.id for patch in series.patches if patch.status == "carried"} - {patch.id for patch in chosen} == {
        "poison"
    }
    assert not list(seriesfile.touching(series, spec.vllm.differs, _shown(version)))
    assert not any(seriesfile.native(patch) for patch in chosen)
    for name, profile in spec.profiles.items():
        assert {*profile.sentinels} <= patchset.sentinels(chosen), name


@on_each
def test_the_patch_files_are_as_nvllm_writes_them(version: str) -> None:
    series = seriesfile.load(_directory(version), _shown(version))
    for patch in series.patches:
        if patch.status == "carried":
            diff = seriesfile.diff(_directory(version), patch, _shown(version))
            assert unified.render(diff) == (_directory(version) / str(patch.file)).read_bytes()


@on_each
def test_the_hunks_apply_to_their_own_old_side_and_are_then_there(version: str) -> None:
    series = seriesfile.load(_directory(version), _shown(version))
    for diff in seriesfile.diffs(_directory(version), series.patches, _shown(version)).values():
        before = series_samples.old_side(diff)
        changes = patching.apply(MappingTree(before), diff)
        assert patching.reverses(MappingTree(changes), diff)
        assert not patching.reverses(MappingTree(before), diff)
