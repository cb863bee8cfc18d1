"""NV106: a patch set lacks what it requires, or holds a conflict."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.patches import patchset, seriesfile
from support.series_samples import (
    ONE,
    SHOWN,
    SOURCE,
    TWO,
    changed,
    entry,
    patch_text,
    series_directory,
    two_patches,
    write,
)

_WHERE = "images/cpu.yaml:40: .patches.enable"


def _refusal(directory: Path, *enable: str) -> Refusal:
    with pytest.raises(Refused) as caught:
        patchset.choose(seriesfile.load(directory, SHOWN), enable, where=_WHERE)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV106", _WHERE)
    assert caught.value.exit_code == 2
    return refusal


def test_a_set_without_what_it_requires_is_refused(tmp_path: Path) -> None:
    refusal = _refusal(two_patches(tmp_path), "second")
    assert (refusal.expected, refusal.found) == ("first, which second requires", "not in it")
    assert refusal.cure == "add first"


def test_two_patches_that_conflict_are_refused_once(tmp_path: Path) -> None:
    directory = series_directory(tmp_path)
    write(
        directory,
        entry(directory, 1, "first", patch_text(SOURCE, changed(one=ONE)), "    conflicts: [second]\n"),
        entry(directory, 2, "second", patch_text(SOURCE, changed(two=TWO)), "    conflicts: [first]\n"),
    )
    refusal = _refusal(directory, "second", "first")
    assert (refusal.expected, refusal.found) == ("first or second: they conflict", "both")
    assert refusal.cure == "take first or second out"


def test_what_is_upstream_or_rejected_cannot_be_enabled(tmp_path: Path) -> None:
    directory = write(
        series_directory(tmp_path),
        """\
  - id: drain
    status: upstream
    summary: There already
    upstream: {state: merged, since: 0.26.0}
    touches: [vllm/one.py]
    evidence: [{path: vllm/one.py, contains: [a]}]
  - id: padding
    status: rejected
    summary: Must not be applied
    upstream: {state: closed}
    reason: it writes outside the tensor
""",
    )
    assert _refusal(directory, "drain").found == "drain, which is already upstream since 0.26.0"
    assert _refusal(directory, "padding").found == "padding, which is rejected: it writes outside the tensor"
