"""Nix as the builder, with stand-ins for its programs: what they are asked, and what is made of their answers.

The real Nix is in tests/nix.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.image import nix
from nvllm.image.nix import NixBuilder
from nvllm.layers import oci
from nvllm.layers.oci import Image
from support.layersamples import World

ADDING = '#!/bin/sh\nshift 2\nfor file; do echo "${file##*/}"; done >>"$(dirname "$0")/added"\n'


class Installed:
    """A project with a flake, and programs that stand in for Nix, below ROOT."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(root)
        self.root = root
        self.build, _ = self.world.build()
        self.image = self.world.builder(root / "layers").image()
        (root / "flake.nix").touch()
        self.programs = root / "bin"
        self.programs.mkdir()
        self.program("nix-store", ADDING)
        monkeypatch.setenv("PATH", f"{self.programs}:/usr/bin:/bin")

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def builds(self, image: Image) -> Path:
        """Let Nix answer that it built the layout of IMAGE, with its layers as links, and return the layout."""
        layout = self.root / "layout"
        oci.write_layout(image, "demo", layout)
        for layer in image.layers:
            blob = layout / "blobs" / layer.diff_id.replace(":", "/")
            blob.unlink()
            blob.symlink_to(layer.path)
        answer = json.dumps([{"drvPath": "/nix/store/x.drv", "outputs": {"out": str(layout)}}])
        self.program("nix", f"#!/bin/sh\necho \"$@\" >{self.programs}/asked\necho '{answer}'\n")
        return layout

    @property
    def builder(self) -> NixBuilder:
        places = Places(self.root / "cache", self.root / "state")
        places.cache.mkdir()
        (places.cache / "store").symlink_to(self.world.store.root)
        return NixBuilder(Project(self.root), places, Silent(), offline=True)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    return Installed(tmp_path, monkeypatch)


def test_a_layout_is_read_as_the_image_that_it_was_written_from(installed: Installed) -> None:
    assert nix.read(installed.builds(installed.image)) == installed.image


def test_nix_is_given_every_locked_file_and_asked_for_the_image(installed: Installed) -> None:
    installed.builds(installed.image)
    assert installed.builder.image(installed.build) == installed.image
    added = (installed.programs / "added").read_text().split()
    assert added == sorted({file.sha256 for file in installed.build.lock.files})
    asked = (installed.programs / "asked").read_text().split()
    assert "build" in asked
    assert asked[-1] == f"{installed.root}#oci-demo"


def test_an_image_of_another_build_is_refused(installed: Installed) -> None:
    installed.builds(installed.image)
    spec = installed.build.spec
    other = replace(
        installed.build, spec=replace(spec, runtime=replace(spec.runtime, environment={"ANOTHER": "value"}))
    )
    with pytest.raises(Refused) as caught:
        installed.builder.image(other)
    (found,) = caught.value.refusals
    assert (found.code, found.expected) == ("NV316", f"build hash {other.build_hash}")
    assert found.cure.startswith("git add")
