"""NV613, required patch missing: a profile requires a patch that neither the patch set nor the release has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nvllm.core.spec import ImageSpec
from nvllm.patches import patchset, seriesfile
from nvllm.patches.series import Series
from nvllm.spec import specfile
from support.series_samples import two_patches
from support.specs import GOOD, SHOWN


def requiring(*names: str) -> ImageSpec:
    spec = specfile.parse(GOOD, SHOWN)
    profiles = {name: replace(profile, requires=names) for name, profile in spec.profiles.items()}
    return replace(spec, profiles=profiles)


def upstream(series: Series, name: str) -> Series:
    patches = tuple(replace(one, status="upstream") if one.id == name else one for one in series.patches)
    return replace(series, patches=patches)


def test_what_a_profile_requires_is_in_the_set_or_in_the_release(tmp_path: Path) -> None:
    two_patches(tmp_path)
    series = seriesfile.load(tmp_path / "patches/v1", "patches/v1")
    first, second = series.patches
    (profile, *_) = requiring().profiles
    spec = requiring("first", "second", "third")
    where = f"images/demo.yaml: .profiles.{profile}.requires"
    assert list(patchset.unmet(requiring("first"), profile, series, [first, second])) == []
    assert list(patchset.unmet(requiring("second"), profile, upstream(series, "second"), [first])) == []
    refusals = list(patchset.unmet(spec, profile, series, [first]))
    assert [(one.code, one.where, one.expected, one.found) for one in refusals] == [
        ("NV613", where, "a patch set that has second", "not in the set, carried by v1"),
        ("NV613", where, "a patch set that has third", "not in v1"),
    ]
    assert refusals[0].cure == "write second under patches.enable, then nvllm build demo"
    assert patchset.lacking(spec, series, [first])[profile] == ["second", "third"]
