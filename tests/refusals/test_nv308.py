"""NV308, not as recorded: a build has other bytes than the project's recorded digests say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.buildable import IMAGE, Buildable

SHOWN = f"manifests/{IMAGE}.digests.json"


def test_a_record_of_other_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a machine that builds something else; here, the record of one layer is changed."""
    world = Buildable(tmp_path)
    assert world.nvllm(capsys, "build", IMAGE, "--layout", str(tmp_path / "one"), "--record")[0] == 0
    path = world.project.digests(IMAGE)
    document = json.loads(path.read_bytes())
    layers = document["platforms"]["linux/amd64"]["layers"]
    record = next(layer for layer in layers if layer["name"] == "record")
    path.write_text(path.read_text().replace(record["diff_id"], f"sha256:{64 * '0'}"))
    status, said = world.nvllm(capsys, "build", IMAGE, "--layout", str(tmp_path / "two"))
    (refusal,) = said["refusals"]
    kept = world.places.differing / document["platforms"]["linux/amd64"]["build_hash"][:12]
    assert (status, refusal) == (
        3,
        {
            "code": "NV308",
            "title": "not as recorded",
            "kind": "refused",
            "where": f"{SHOWN}: layer record",
            "expected": f"sha256:{64 * '0'}",
            "found": record["diff_id"],
            "cure": f"nvllm build {IMAGE} --layout good, where it is as recorded; "
            f"then nvllm image diff good {kept}/built",
        },
    )


def test_a_record_of_another_image_id_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Buildable(tmp_path)
    assert world.nvllm(capsys, "build", IMAGE, "--layout", str(tmp_path / "one"), "--record")[0] == 0
    path = world.project.digests(IMAGE)
    image_id = json.loads(path.read_bytes())["platforms"]["linux/amd64"]["image_id"]
    path.write_text(path.read_text().replace(image_id, f"sha256:{64 * '0'}"))
    _, said = world.nvllm(capsys, "build", IMAGE, "--layout", str(tmp_path / "two"))
    (refusal,) = said["refusals"]
    assert (refusal["where"], refusal["found"]) == (f"{SHOWN}: image id", image_id)
