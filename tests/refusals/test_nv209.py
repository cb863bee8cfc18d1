"""NV209, cannot resolve: pip, apt or the index could not resolve what the spec asks for."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.sources import debian, indexes, pulls
from nvllm.sources import wheels as wheelset
from nvllm.sources.indexes import Configuration, Indexes
from nvllm.sources.wheels import Target
from support.aptmirror import publish
from support.loopback import Site
from support.wheels import make_wheel

HERE = Target(platform.python_version(), platform.machine(), 36)


pytestmark = pytest.mark.usefixtures("trusted")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", os.fspath(tmp_path))
    return tmp_path


def only(refused: pytest.ExceptionInfo[Refused]) -> Refusal:
    (found,) = refused.value.refusals
    assert found.code == "NV209"
    return found


def test_requirements_that_contradict_each_other(shelf: Path) -> None:
    make_wheel(shelf, "dep", "1.0")
    make_wheel(shelf, "app", "2.0", ["dep>=2"])
    with pytest.raises(Refused) as refused:
        wheelset.resolve(["app==2.0"], HERE, {}, {}, indexes.read_configuration())
    found = only(refused)
    assert (found.where, found.expected) == ("uv pip compile", "wheels that meet python.requirements of the spec")
    assert "only dep==1.0 is available and all versions of app depend on dep>=2" in found.found
    assert "pip config list" in found.cure


@pytest.mark.parametrize("there", ["nothing", "dep-1.0", "dep-1.0+cpu for another machine"])
def test_a_wheel_that_only_another_index_has(shelf: Path, there: str) -> None:
    """The label of a version such as 1.0+cpu is a build that the default index takes from nobody."""
    make_wheel(shelf, "app", "2.0", ["dep==1.0+cpu"])
    if there != "nothing":
        made = make_wheel(shelf, "dep", there.removeprefix("dep-").split()[0])
        if "another" in there:
            made.rename(shelf / made.name.replace("any", "manylinux_2_17_s390x"))
    with pytest.raises(Refused) as refused:
        wheelset.resolve(
            ["app==2.0", "dep==1.0+cpu"],
            HERE,
            {"other": "1.0"},
            {"dep": "the index of its maker"},
            indexes.read_configuration(),
        )
    assert only(refused).cure.startswith(
        "give pip the URL of the index of its maker: pip config set global.extra-index-url URL"
    )


def test_a_conflict_about_such_a_wheel_is_not_a_lack_of_it(shelf: Path) -> None:
    for version in ("1.0+cpu", "2.0+cpu"):
        make_wheel(shelf, "dep", version)
    make_wheel(shelf, "app", "2.0", ["dep==1.0"])
    with pytest.raises(Refused) as refused:
        wheelset.resolve(
            ["app==2.0", "dep==2.0+cpu"], HERE, {}, {"dep": "the index of its maker"}, indexes.read_configuration()
        )
    assert only(refused).cure.startswith("change python.requirements")


def test_packages_that_the_suite_has_not(site: Site) -> None:
    offered = publish(site, "bookworm", {"bash": ("5.2", "")})
    with pytest.raises(Refused) as refused:
        debian.resolve("bookworm", ["bash", "no-such-package"], "amd64", {}, offered)
    found = only(refused)
    assert (found.where, found.expected) == ("apt-get, suite bookworm", "base.packages of the spec, resolved")
    assert "Unable to locate package no-such-package" in found.found
    assert "apt-get update" in found.cure


def test_one_mirror_of_several_that_does_not_answer(site: Site) -> None:
    """Its updates would silently be missing from the lock."""
    offered = publish(site, "bookworm", {"bash": ("5.2", "")})
    gone = publish(site, "bookworm-security", {"bash": ("5.3", "")})
    for path in [path for path in site.pages if "bookworm-security" in path]:
        del site.pages[path]
    with pytest.raises(Refused) as refused:
        debian.resolve("bookworm", ["bash"], "amd64", {}, offered + gone)
    assert "bookworm-security" in only(refused).found


@pytest.mark.parametrize(("offline", "problem"), [(False, "status 404"), (True, "--offline")])
def test_a_pull_request_that_its_host_does_not_give(site: Site, offline: bool, problem: str) -> None:
    url = f"{site.url}/owner/fork/pull/7.patch"
    with pytest.raises(Refused) as refused:
        pulls.text(url, "--from-pr", Indexes(Configuration((), (), (), None)).client, offline=offline)
    found = only(refused)
    assert (found.where, found.found) == (url, problem)
    assert found.cure.endswith(f"curl --location --remote-name {url}")


def test_a_version_without_a_source_archive(site: Site) -> None:
    url = site.index("vllm", {"vllm-0.28.0-cp38-abi3-linux_x86_64.whl": b"wheel"})
    with pytest.raises(Refused) as refused:
        Indexes(Configuration((url,), (), (), None)).sdist("vllm", "0.28.0")
    found = only(refused)
    assert (found.where, found.cure) == (
        "index pypi: vllm",
        "pip index versions vllm",
    )


def test_an_index_that_breaks_while_it_is_asked(site: Site) -> None:
    url = site.index("vllm", {"vllm-0.28.0.tar.gz": b"archive"})
    broken = Indexes(Configuration((url,), (), (), None))
    site.pages["/simple/vllm/"].failures = 1
    with pytest.raises(Refused) as refused:
        broken.sdist("vllm", "0.28.0")
    assert only(refused).found == "status 503"
    with pytest.raises(Refused) as refused:
        broken.size(f"{site.url}/files/gone.whl")
    assert (only(refused).where, only(refused).found) == ("index: gone.whl", "status 404")


def test_a_pip_whose_configuration_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("this is no configuration\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.fspath(tmp_path / "pip.conf"))
    with pytest.raises(Refused) as refused:
        indexes.read_configuration()
    found = only(refused)
    assert found.where == "pip config"
    assert "pip.conf" in found.found
    assert found.cure.endswith("pip --disable-pip-version-check config list")
