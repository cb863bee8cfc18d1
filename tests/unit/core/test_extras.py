"""The command that installs an extra: for the Python that runs nvllm, whatever has installed it there."""

from __future__ import annotations

import shlex
import sys
import tomllib
from importlib import metadata, util
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nvllm.core import extras

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
DECLARED = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted({"eval", "gpu", "ray", "sbom"}))
def test_an_extra_brings_what_the_project_declares(extra: str) -> None:
    assert sorted(extras.packages(extra)) == sorted(str(Requirement(one)) for one in DECLARED[extra])


def test_what_every_installation_has_is_of_no_extra() -> None:
    assert extras.packages("nothing") == []


def test_pip_of_this_python_is_asked_for_the_packages_and_for_nothing_called_nvllm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/a home/bin/python")
    words = shlex.split(extras.installing("ray"))
    assert words == ["/a home/bin/python", "-m", "pip", "install", *extras.packages("ray")]


def test_a_python_without_pip_is_given_packages_by_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/tools/bin/python")
    monkeypatch.setattr(util, "find_spec", lambda _name: None)
    words = shlex.split(extras.installing("gpu"))
    assert words[:6] == ["/tools/bin/python", "-m", "uv", "pip", "install", "--python"]
    assert words[6:] == ["/tools/bin/python", *extras.packages("gpu")]


def test_a_checkout_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert shlex.split(extras.installing("ray"))[-1] == "nvllm[ray]"
