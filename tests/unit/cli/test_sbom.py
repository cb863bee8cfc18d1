"""`nvllm sbom` on a small project whose store has every wheel, and on one whose store has none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nvllm.core import extras
from nvllm.image import sbom
from nvllm.image.identity import load_build
from support.buildable import IMAGE, Buildable


@pytest.fixture
def demo(tmp_path: Path) -> Buildable:
    return Buildable(tmp_path)


def test_the_document_is_printed_or_written_and_says_what_was_looked_into(
    demo: Buildable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = demo.nvllm(capsys, "sbom", IMAGE)
    count = len(demo.lock.wheels)
    assert (status, said["result"]["wheels"], said["result"]["wheels_read"]) == (0, count, count)
    assert said["result"]["document"]["specVersion"] == "1.6"
    status, written = demo.nvllm(capsys, "sbom", IMAGE, "--output", str(tmp_path / "demo.cdx.json"))
    assert (status, written["result"]["file"]) == (0, str(tmp_path / "demo.cdx.json"))
    assert json.loads((tmp_path / "demo.cdx.json").read_text()) == said["result"]["document"]


def test_an_empty_store_gives_a_document_without_licenses(demo: Buildable, capsys: pytest.CaptureFixture[str]) -> None:
    for wheel in demo.lock.wheels:
        (demo.places.store / "sha256" / wheel.file.sha256[:2] / wheel.file.sha256).unlink()
    status, said = demo.nvllm(capsys, "sbom", IMAGE)
    assert (status, said["result"]["wheels_read"]) == (0, 0)
    assert "licenses" not in json.dumps(said["result"]["document"])


def test_spdx_is_the_document_inside_the_image(demo: Buildable, capsys: pytest.CaptureFixture[str]) -> None:
    build, _ = load_build(demo.project, IMAGE, None)
    _, said = demo.nvllm(capsys, "sbom", IMAGE, "--format", "spdx")
    assert said["result"]["document"] == sbom.document(build)
    assert said["result"]["wheels_read"] is None


def test_without_the_library_the_extra_is_named(
    demo: Buildable, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cyclonedx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "nvllm.image.cyclonedx", raising=False)
    monkeypatch.delattr("nvllm.image.cyclonedx", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Without(), *sys.meta_path])
    status, said = demo.nvllm(capsys, "sbom", IMAGE)
    (one,) = said["refusals"]
    assert (status, one["code"], one["cure"]) == (3, "NV512", extras.installing("sbom"))


class Without:
    """Finds no module of cyclonedx, as where the extra is not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "cyclonedx":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
