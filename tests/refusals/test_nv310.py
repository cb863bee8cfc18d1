"""NV310, images differ: two images, or two builds of one, do not have the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.buildable import IMAGE, PATCH, Buildable


def test_two_patch_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Buildable(tmp_path)
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    for place, patches in ((one, PATCH), (other, "none")):
        assert world.nvllm(capsys, "build", IMAGE, "--patches", patches, "--layout", place)[0] == 0
    status, said = world.nvllm(capsys, "image", "diff", one, other)
    assert (status, said["command"]) == (3, "image diff")
    assert {one["code"] for one in said["refusals"]} == {"NV310"}
    found = {one["where"].removeprefix(f"{one} and {other}: "): one for one in said["refusals"]}
    layer = next(one for where, one in found.items() if where.endswith("layer patches vllm/__init__.py"))
    assert (layer["expected"], layer["found"]) == ("layer present", "layer absent")
    assert said["result"]["same"] is False
    differing = {(one["layer"], one["path"]) for one in said["result"]["differences"]}
    assert ("identity", "opt/nvllm/identity.json") in differing
    assert ("configuration", ".config.Labels.nvllm.build-hash") in differing
    document = next(one for one in said["result"]["differences"] if one["path"] == "opt/nvllm/identity.json")
    assert document["layer"] == "identity"


def test_the_same_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Buildable(tmp_path)
    for place in ("one", "other"):
        assert world.nvllm(capsys, "build", IMAGE, "--layout", str(tmp_path / place))[0] == 0
    status, said = world.nvllm(capsys, "image", "diff", str(tmp_path / "one"), str(tmp_path / "other"))
    assert (status, said["result"]["same"], said["result"]["differences"]) == (0, True, [])
