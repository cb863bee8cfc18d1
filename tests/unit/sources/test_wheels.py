"""pip's resolver, run for real over a directory of small wheels."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.sources import wheels as wheelset
from nvllm.sources.wheels import Target
from support.wheels import make_wheel

HERE = Target(platform.python_version(), platform.machine(), 36)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all that pip knows."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", os.fspath(tmp_path))
    return tmp_path


def test_the_newest_that_fit_come_with_their_hashes(shelf: Path) -> None:
    make_wheel(shelf, "Dep.B", "1.0")
    newest = make_wheel(shelf, "Dep.B", "1.1+cpu")
    make_wheel(shelf, "app-a", "2.0", ["dep.b>=1.0", "absent; python_version < '3'"])
    app, dep = wheelset.resolve(["app-a==2.0"], HERE, {}, {})
    assert (app.name, app.version) == ("app-a", "2.0")
    assert (dep.name, dep.version, dep.filename) == ("dep-b", "1.1+cpu", newest.name)
    assert dep.sha256 == hashlib.sha256(newest.read_bytes()).hexdigest()
    assert dep.url == newest.as_uri()


def test_kept_versions_stay_and_bring_nothing_by_themselves(shelf: Path) -> None:
    for version in ("1.0", "1.1"):
        make_wheel(shelf, "dep", version)
    make_wheel(shelf, "app", "2.0", ["dep"])
    make_wheel(shelf, "unneeded", "1.0")
    found = wheelset.resolve(["app==2.0"], HERE, {"dep": "1.0", "unneeded": "1.0"}, {})
    assert [(wheel.name, wheel.version) for wheel in found] == [("app", "2.0"), ("dep", "1.0")]


def test_nothing_is_installed_or_left(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(shelf, "app", "2.0")
    scratch = shelf / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(scratch))
    wheelset.resolve(["app==2.0"], HERE, {}, {})
    assert list(scratch.iterdir()) == []


def test_what_cannot_be_kept_names_the_update(shelf: Path) -> None:
    make_wheel(shelf, "dep", "1.0")
    make_wheel(shelf, "dep", "2.0")
    make_wheel(shelf, "app", "2.0", ["dep>=2"])
    with pytest.raises(Refused) as refused:
        wheelset.resolve(["app==2.0"], HERE, {"dep": "1.0"}, {})
    (refusal,) = refused.value.refusals
    assert refusal.cure.endswith("--update wheels")


def test_platform_tags_are_those_of_the_c_library_and_older() -> None:
    tags = wheelset.platform_tags(Target("3.11.2", "x86_64", 28))
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert "manylinux_2_29_x86_64" not in tags
    assert len(tags) == len(set(tags))
    assert wheelset.platform_tags(Target("3.11.2", "aarch64", 5))[:1] == ["manylinux_2_5_aarch64"]


def test_a_wheel_for_a_newer_c_library_is_not_taken(shelf: Path) -> None:
    machine = platform.machine()
    for version, tag in (("1.0", f"manylinux_2_17_{machine}"), ("2.0", f"manylinux_2_40_{machine}")):
        wheel = make_wheel(shelf, "app", version)
        wheel.rename(shelf / f"app-{version}-py3-none-{tag}.whl")
    (app,) = wheelset.resolve(["app"], HERE, {}, {})
    assert app.version == "1.0"


def test_markers_are_those_of_the_image_and_not_of_this_host(shelf: Path) -> None:
    for name in ("arm-only", "intel-only", "old-only", "new-only", "patched-only"):
        make_wheel(shelf, name, "1.0")
    needs = [
        "arm-only; platform_machine == 'aarch64'",
        "intel-only; platform_machine == 'x86_64'",
        "old-only; python_version < '3.12'",
        "new-only; python_version >= '3.12' and sys_platform == 'linux'",
        "patched-only; python_full_version >= '3.12.4'",
    ]
    make_wheel(shelf, "app", "2.0", needs)

    def names(target: Target) -> list[str]:
        return [wheel.name for wheel in wheelset.resolve(["app==2.0"], target, {}, {})]

    assert names(Target("3.12.0", "aarch64", 36)) == ["app", "arm-only", "new-only"]
    assert names(Target("3.12.14", "x86_64", 36)) == ["app", "intel-only", "new-only", "patched-only"]
    assert names(Target("3.11.2", "x86_64", 36)) == ["app", "intel-only", "old-only"]
