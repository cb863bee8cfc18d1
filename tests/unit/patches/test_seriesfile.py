"""Loading a series: a whole one gives its values, a broken one everything that is wrong with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import seriesfile
from nvllm.patches.series import Patch, Upstream
from support import series_samples
from support.series_samples import ONE, SHOWN, SOURCE, changed, entry, patch_text, series_directory, two_patches, write


def test_a_whole_series_is_loaded(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    series = seriesfile.load(directory, SHOWN)
    assert (series.base, series.version, series.commit[:8]) == ("v1", "1.2.3", "2cf0a691")
    first, second = series.patches
    assert (first.id, first.status, first.file) == ("first", "carried", "0001-first.patch")
    assert (first.touches, first.upstream) == (("vllm/one.py",), Upstream("none"))
    assert second.requires == ("first",)
    assert series.patch("second") is second
    assert series.patch("third") is None
    diffs = seriesfile.diffs(directory, series.patches, SHOWN)
    assert {name: diff.paths for name, diff in diffs.items()} == {"first": ("vllm/one.py",), "second": ("vllm/two.py",)}


def test_no_series_is_an_unknown_name(tmp_path: Path) -> None:
    two_patches(tmp_path)
    with pytest.raises(Refused) as caught:
        seriesfile.load(tmp_path / "patches/v9", "patches/v9")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.cure) == ("NV107", "patches/v9", "name one of: v1")


def test_a_short_commit_is_a_moving_name(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    file = directory / "series.yaml"
    file.write_text(file.read_text().replace("2cf0a6915ce544dc493a0990f2ea38d81601128a", "abcdef0"))
    with pytest.raises(Refused) as caught:
        seriesfile.load(directory, SHOWN)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV102", f"{SHOWN}/series.yaml:5: .commit")


def test_the_file_must_be_text(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    (directory / "series.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(Refused) as caught:
        seriesfile.load(directory, SHOWN)
    assert [refusal.code for refusal in caught.value.refusals] == ["NV103"]


def test_evidence_and_reason_are_loaded(tmp_path: Path) -> None:
    directory = write(
        series_directory(tmp_path),
        """\
  - id: there
    status: upstream
    summary: There already
    upstream: {state: merged, reference: "o/r#1", since: 0.26.0}
    touches: [vllm/one.py]
    evidence:
      - {path: vllm/one.py, contains: [a, b], lacks: [c]}
  - id: wrong
    status: rejected
    summary: Must not be applied
    upstream: {state: closed, reference: "o/r#2"}
    reason: it writes outside the tensor
""",
    )
    there, wrong = seriesfile.load(directory, SHOWN).patches
    assert (there.evidence[0].contains, there.evidence[0].lacks) == (("a", "b"), ("c",))
    assert there.upstream == Upstream("merged", "o/r#1", "0.26.0")
    assert wrong.reason == "it writes outside the tensor"
    assert seriesfile.diffs(directory, (there, wrong), SHOWN) == {}


def test_native_is_what_is_compiled(tmp_path: Path) -> None:
    def patch(*touches: str) -> Patch:
        return Patch("p", "carried", "p", Upstream("none"), touches=touches)

    assert not seriesfile.native(patch("vllm/csrc/a.py", "tests/setup.py"))
    for path in ("csrc/a.cu", "cmake/x.cmake", "CMakeLists.txt", "setup.py", "pyproject.toml"):
        assert seriesfile.native(patch("vllm/a.py", path)), path


def test_a_patch_on_a_file_of_the_wheels_own_is_refused(tmp_path: Path) -> None:
    series = seriesfile.load(two_patches(tmp_path), SHOWN)
    assert not list(seriesfile.touching(series, ["vllm/_version.py"], SHOWN))
    (refusal,) = seriesfile.touching(series, ["vllm/two.py", "vllm/_version.py"], SHOWN)
    assert (refusal.code, refusal.where, refusal.found) == ("NV104", f"{SHOWN}/0002-second.patch", "vllm/two.py")


def test_a_proof_that_nobody_wrote_is_found(tmp_path: Path) -> None:
    directory = series_directory(tmp_path)
    text = patch_text(SOURCE, changed(one=ONE))
    nodes = ["f.py::test_a", "f.py::TestB::test_c[1]", "f.py::TestB::test_d", "f.py::test_e", "g.py::test_a", "f.py"]
    listed = entry(directory, 1, "first", text).replace("[tests/unit/test_x.py::test_x]", str(nodes))
    series = seriesfile.load(write(directory, listed), SHOWN)
    (tmp_path / "f.py").write_text("def test_a(): ...\nclass TestB:\n    def test_c(self, x): ...\n")
    missing = [("first", node) for node in nodes[2:]]
    assert series_samples.unproved(series, tmp_path) == tuple(missing)


def test_the_series_is_the_same_in_another_directory(tmp_path: Path) -> None:
    directory = two_patches(tmp_path)
    copy = shutil.copytree(directory, tmp_path / "elsewhere" / "v1")
    assert seriesfile.load(directory, SHOWN) == seriesfile.load(copy, "other")
