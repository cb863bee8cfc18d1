"""NV316, not built by Nix: Nix fails, or the project or the image is none that Nix can build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.extensions import NativeBuild
from nvllm.core.lock import LockedNative, LockedRegistryBase
from nvllm.core.paths import Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refusal, Refused
from nvllm.image.identity import Build
from nvllm.image.nix import NixBuilder
from nvllm.sources.store import Store
from support import locks
from support.plansamples import SPEC, places


@pytest.fixture
def nix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program nix, and one to add files, which fail as Nix does."""
    for name in ("nix", "nix-store"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'error: builder failed with exit code 3' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _refusal(root: Path, build: Build) -> Refusal:
    with pytest.raises(Refused) as caught:
        NixBuilder(Project(root), places(root), Silent(), offline=True).image(build)
    (found,) = caught.value.refusals
    return found


def test_without_nix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = _refusal(tmp_path, Build(SPEC, locks.GOOD, ()))
    assert (found.code, found.expected, found.cure) == ("NV512", "the program nix", "apt-get install nix-bin")


def test_a_project_without_a_flake(nix: Path) -> None:
    found = _refusal(nix, Build(SPEC, locks.GOOD, ()))
    assert (found.code, found.where, found.found) == ("NV316", str(nix / "flake.nix"), "no such file")
    assert "docs/nix.md" in found.cure


def test_an_image_on_a_registrys_base(nix: Path) -> None:
    base = LockedRegistryBase("registry", "3.12", f"nvidia/cuda@sha256:{64 * 'a'}", "/usr/bin/python3.12")
    found = _refusal(nix, Build(SPEC, replace(locks.GOOD, base=base), ()))
    assert (found.code, found.where, found.found) == ("NV316", "--builder nix", base.image)
    assert found.cure == "nvllm build demo"


def test_a_patch_set_that_is_compiled(nix: Path) -> None:
    lock = replace(locks.GOOD, vllm=replace(locks.GOOD.vllm, native=LockedNative("cpu", (), {})))
    touching = replace(locks.patch("kernel"), touches=("csrc/cpu/layernorm.cpp",))
    spec = replace(SPEC, vllm=replace(SPEC.vllm, native=NativeBuild("cpu", ("_C",), ("cmake==4.4.4",))))
    refusal = _refusal(nix, Build(spec, lock, (touching,)))
    assert (refusal.code, refusal.where, refusal.cure) == ("NV316", "--builder nix", "nvllm build demo")


def test_what_nix_says_is_in_the_refusal(nix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nix / "flake.nix").touch()
    monkeypatch.setattr(NixBuilder, "fetched", lambda self, build, files: Store(self.places.store))
    found = _refusal(nix, Build(SPEC, locks.GOOD, ()))
    assert (found.code, found.found) == ("NV316", "error: builder failed with exit code 3")
    assert found.cure == f"nix build -L '{nix}#oci-demo'"
