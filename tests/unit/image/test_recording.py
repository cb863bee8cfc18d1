"""Holding builds against the record, without an engine: `as recorded`, or a refusal that keeps both sides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.image import digests, recording
from nvllm.layers import tarlayer, wheel
from nvllm.layers.tarlayer import TarEntry
from support import planted
from support.buildable import IMAGE, PATCH, Buildable

Output = pytest.CaptureFixture[str]


@pytest.fixture
def world(tmp_path: Path, compiled_once: None) -> Buildable:
    return Buildable(tmp_path)


def built(world: Buildable, capsys: Output, name: str, *words: str) -> dict[str, Any]:
    status, said = world.nvllm(capsys, "build", IMAGE, "--layout", str(world.home / name), *words)
    assert status == 0, said
    found: dict[str, Any] = said["result"]
    return found


def test_a_build_that_was_recorded_is_as_recorded_on_another_machine(
    world: Buildable, tmp_path: Path, capsys: Output
) -> None:
    assert built(world, capsys, "first")["record"] == "not recorded"
    assert built(world, capsys, "second", "--record")["record"] == f"written to manifests/{IMAGE}.digests.json"
    assert built(world, capsys, "third")["record"] == "as recorded"
    (tmp_path / "elsewhere").mkdir()
    other = Buildable(tmp_path / "elsewhere")
    other.project.digests(IMAGE).write_bytes(world.project.digests(IMAGE).read_bytes())
    assert built(other, capsys, "first")["record"] == "as recorded"
    found = digests.read(world.project.digests(IMAGE), "demo.digests.json")
    assert found is not None
    index = json.loads((world.home / "third/index.json").read_bytes())
    assert found.platforms["linux/amd64"].manifest == index["manifests"][0]["digest"]


def test_recording_twice_writes_the_same_bytes(world: Buildable, capsys: Output) -> None:
    built(world, capsys, "first", "--record")
    before = world.project.digests(IMAGE).read_bytes()
    built(world, capsys, "second", "--record")
    assert world.project.digests(IMAGE).read_bytes() == before


def test_another_patch_set_is_not_held_against_the_record(world: Buildable, capsys: Output) -> None:
    built(world, capsys, "first", "--record")
    assert built(world, capsys, "none", "--patches", "none")["record"] == "not recorded for this build hash"
    assert built(world, capsys, "same", "--patches", PATCH)["record"] == "as recorded"


def test_the_layers_of_the_patch_set_are_held_against_the_whole(world: Buildable, capsys: Output) -> None:
    built(world, capsys, "first", "--record")
    before = world.project.digests(IMAGE).read_bytes()
    for words in ([], ["--record"]):
        status, said = world.nvllm(capsys, "build", IMAGE, "--layers-only", *words)
        assert status == 0, said
    assert world.project.digests(IMAGE).read_bytes() == before, "the whole stays recorded"


def test_a_dry_run_says_nothing_of_the_record(world: Buildable, capsys: Output) -> None:
    status, said = world.nvllm(capsys, "build", IMAGE, "--dry-run")
    assert status == 0
    assert "record" not in said["result"]


def test_what_is_not_as_recorded_is_refused_named_and_kept(
    world: Buildable, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer cache still has the recorded layer, under the key of another version of the rules."""
    built(world, capsys, "first", "--record")
    keep = next(
        path for path in world.places.layers.glob("*.json") if json.loads(path.read_bytes())["kind"] == "wheels"
    )
    for path in (keep, keep.with_suffix(".tar")):
        path.rename(path.with_name(f"{64 * '0'}{path.suffix}"))
    original = wheel.environment
    monkeypatch.setattr(
        wheel, "environment", lambda *given: [*original(*given), tarlayer.blob(planted.path("new"), b"new\n")]
    )
    status, said = world.nvllm(capsys, "build", IMAGE, "--layout", str(world.home / "second"))
    assert status == 3
    assert not (world.home / "second").exists()
    identity, wheels = said["refusals"]
    shown = f"manifests/{IMAGE}.digests.json"
    assert (wheels["code"], wheels["where"]) == ("NV308", f"{shown}: layer wheels: opt/venv/planted")
    assert (wheels["expected"], wheels["found"].partition(" (")[0]) == ("file absent", "file directory")
    assert identity["where"] == f"{shown}: layer identity: opt/nvllm/identity.json"
    program, image, verb, recorded, found = wheels["cure"].split()
    assert (program, image, verb) == ("nvllm", "image", "diff")
    status, said = world.nvllm(capsys, "image", "diff", recorded, found)
    assert planted.path("new") in {one["path"] for one in said["result"]["differences"]}
    # Nothing that differs stays in the cache: without the change the next build is as recorded.
    monkeypatch.undo()
    assert built(world, capsys, "third")["record"] == "as recorded"


def test_without_the_recorded_layer_the_digests_are_named(
    world: Buildable, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(world, capsys, "first", "--record")
    recorded = json.loads(world.project.digests(IMAGE).read_bytes())["platforms"]["linux/amd64"]["layers"]
    for path in world.places.layers.iterdir():
        if path.is_file():
            path.unlink()
    planted.plant(monkeypatch)
    status, said = world.nvllm(capsys, "build", IMAGE, "--layout", str(world.home / "second"))
    assert status == 3
    found = {one["where"]: one for one in said["refusals"]}
    wheels = found[f"manifests/{IMAGE}.digests.json: layer wheels"]
    assert wheels["expected"] == next(one["diff_id"] for one in recorded if one["name"] == "wheels")
    assert wheels["found"].startswith("sha256:")
    assert wheels["cure"].startswith(
        f"nvllm build {IMAGE} --layout good, where it is as recorded; then nvllm image diff"
    )
    kept = Path(wheels["cure"].rpartition(" ")[2])
    assert {one["kind"] for one in json.loads((kept / "layers.json").read_bytes())["layers"]} == {"wheels", "identity"}


def test_without_the_recorded_layer_its_sketch_names_the_file_and_both_values(
    world: Buildable, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "SKETCHED", 10)
    built(world, capsys, "first", "--record")
    layers = json.loads(world.project.digests(IMAGE).read_bytes())["platforms"]["linux/amd64"]["layers"]
    assert {"base", "wheels"} <= {one["name"] for one in layers if "sketch" in one}
    for path in world.places.layers.iterdir():
        if path.is_file():
            path.unlink()
    original = wheel.environment

    def changed(*given: Any) -> Iterator[TarEntry]:
        for entry in original(*given):
            found = entry.path == "opt/venv/pyvenv.cfg"
            yield replace(entry, mode=0o755) if found else entry

    monkeypatch.setattr(wheel, "environment", changed)
    status, said = world.nvllm(capsys, "build", IMAGE, "--layout", str(world.home / "second"))
    assert status == 3
    (refusal,) = [one for one in said["refusals"] if "layer wheels" in one["where"]]
    assert refusal["where"] == f"manifests/{IMAGE}.digests.json: layer wheels: opt/venv/pyvenv.cfg"
    assert (refusal["expected"], refusal["found"]) == ("mode 0644", "mode 0755")
    assert refusal["cure"].startswith(f"nvllm build {IMAGE} --layout good, where it is as recorded")


def test_a_layer_that_changed_in_the_cache_is_not_written(world: Buildable, capsys: Output) -> None:
    built(world, capsys, "first")
    note = next(
        path for path in world.places.layers.glob("*.json") if json.loads(path.read_bytes())["kind"] == "wheels"
    )
    data = bytearray(note.with_suffix(".tar").read_bytes())
    data[600] ^= 1
    note.with_suffix(".tar").write_bytes(data)
    status, said = world.nvllm(capsys, "build", IMAGE, "--layout", str(world.home / "second"), "--record")
    (refusal,) = said["refusals"]
    assert (status, refusal["code"], refusal["where"]) == (3, "NV308", "layer cache: layer wheels")
    assert not world.project.digests(IMAGE).exists()
