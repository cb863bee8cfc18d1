"""Building again where much is different: what a layer shows of its surroundings is found, kind by kind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.image import identity, rebuild
from support import planted
from support.buildable import IMAGE, Buildable

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Buildable:
    return Buildable(tmp_path_factory.mktemp("world"))


@pytest.mark.thorough
def test_a_build_that_depends_on_nothing_has_the_same_bytes(world: Buildable, capsys: Output) -> None:
    status, said = world.nvllm(capsys, "build", IMAGE, "--check")
    assert status == 0, said
    found = said["result"]
    assert (found["same"], found["differences"]) == (True, [])
    assert {"umask", "time zone", "locale", "file order", "clock", "processors", "hash seed"} < found["varied"].keys()
    assert ("user" in found["varied"]) != ("user" in found["not_varied"])
    assert not world.places.differing.exists()


@pytest.mark.thorough
def test_the_layers_of_the_patch_set_alone(world: Buildable, capsys: Output) -> None:
    status, said = world.nvllm(capsys, "build", IMAGE, "--check", "--layers-only", "--patches", "none")
    assert (status, said["result"]["same"]) == (0, True)
    status, said = world.nvllm(capsys, "build", IMAGE, "--check", "--layers-only")
    assert (status, said["result"]["same"]) == (0, True)


@pytest.fixture
def fresh(tmp_path: Path) -> Buildable:
    return Buildable(tmp_path)


def test_the_second_build_gets_every_file_though_the_first_needs_none(
    fresh: Buildable, tmp_path: Path, capsys: Output
) -> None:
    status, said = fresh.nvllm(capsys, "build", IMAGE, "--layout", str(tmp_path / "layout"))
    assert status == 0, said
    shutil.rmtree(fresh.places.store)
    status, said = fresh.nvllm(capsys, "build", IMAGE, "--layout", str(tmp_path / "again"))
    assert status == 0, said
    _, said = fresh.nvllm(capsys, "build", IMAGE, "--check")
    names = {f"{file.filename} (sha256 {file.sha256})" for file in fresh.lock.files}
    (refusal,) = said["refusals"]
    assert (refusal["code"], {*refusal["expected"].split("; ")}) == ("NV204", names)


@pytest.fixture
def planting() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.thorough
def test_what_is_planted_is_found_by_both_commands(
    fresh: Buildable, planting: pytest.MonkeyPatch, capsys: Output
) -> None:
    planted.plant(planting)
    planting.setattr(rebuild, "COMMAND", "support.planted:run")
    status, said = fresh.nvllm(capsys, "build", IMAGE, "--check")
    assert status == 3, said
    wheels = [one for one in said["result"]["differences"] if one["layer"] == "wheels"]
    found = {one["path"]: one for one in wheels if one["attribute"] == "content"}
    same = {"nothing", *said["result"]["not_varied"]}
    assert found.keys() == {planted.path(kind) for kind in planted.SHOWN.keys() - same}
    for one in found.values():
        assert [line[0] for line in one["lines"]] == ["@", "-", "+"]
    refused = next(one for one in said["refusals"] if "layer wheels" in one["where"])
    assert refused["code"] == "NV310"
    assert refused["where"] == f"{IMAGE}, built twice: layer wheels: {wheels[0]['path']}"
    build, _ = identity.load_build(fresh.project, IMAGE, None)
    kept = fresh.places.differing / f"{build.build_hash[:12]}-check"
    assert refused["cure"] == f"nvllm image diff {kept}/first {kept}/second"
    status, said = fresh.nvllm(capsys, "image", "diff", f"{kept}/first", f"{kept}/second")
    assert status == 3
    assert [one for one in said["result"]["differences"] if one["layer"] == "wheels"] == wheels


def test_a_second_build_that_fails_is_a_difference(
    fresh: Buildable, planting: pytest.MonkeyPatch, capsys: Output
) -> None:
    planting.setattr(rebuild, "COMMAND", "os:abort_")
    status, said = fresh.nvllm(capsys, "build", IMAGE, "--check")
    (refused,) = said["refusals"]
    assert (status, refused["code"], refused["where"]) == (3, "NV310", f"second build of {IMAGE}")
    assert "abort_" in refused["found"]


@pytest.mark.thorough
def test_the_locked_files_keep_their_owner(world: Buildable, capsys: Output) -> None:
    before = {path: path.stat().st_uid for path in (world.places.store / "sha256").rglob("*")}
    world.nvllm(capsys, "build", IMAGE, "--check")
    assert {path: path.stat().st_uid for path in (world.places.store / "sha256").rglob("*")} == before
    assert set(before.values()) == {os.geteuid()}
