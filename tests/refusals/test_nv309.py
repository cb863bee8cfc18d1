"""NV309, recorded digests damaged: the file is not what `nvllm build --record` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.image import digests
from nvllm.image.digests import SCHEMA, BuildDigests, Digests, LayerDigest
from support.buildable import IMAGE, Buildable

A = f"sha256:{64 * 'a'}"
GOOD = digests.encode(
    Digests(SCHEMA, "demo", {"linux/amd64": BuildDigests(64 * "1", (LayerDigest("base", A, 1),), A, A)})
)


def refusals(data: bytes, name: str = "demo.digests.json") -> list[Refusal]:
    with pytest.raises(Refused) as caught:
        digests.decode(data, f"manifests/{name}")
    found = list(caught.value.refusals)
    assert {one.code for one in found} == {"NV309"}
    assert all(" || nvllm build " in one.cure for one in found)
    return found


def test_a_merge_conflict() -> None:
    (found,) = refusals(b"<<<<<<< HEAD\n" + GOOD)
    assert (found.where, found.expected) == ("manifests/demo.digests.json", "a JSON document")


def test_all_fields_that_are_wrong_are_named() -> None:
    document = json.loads(GOOD)
    document["platforms"]["linux/amd64"]["layers"][0]["diff_id"] = "a"
    document["platforms"]["linux/amd64"]["build_hash"] = "main"
    document["platforms"]["windows"] = {"build_hash": 64 * "1", "layers": []}
    found = [one.where.removeprefix("manifests/demo.digests.json: ") for one in refusals(json.dumps(document).encode())]
    assert {one.replace('["linux/amd64"]', ".linux/amd64") for one in found} == {
        ".platforms.linux/amd64.build_hash",
        ".platforms.linux/amd64.layers[0].diff_id",
        ".platforms.windows",
        ".platforms.windows.layers",
    }


def test_another_layout_another_name_and_a_layer_twice() -> None:
    (found,) = refusals(json.dumps(json.loads(GOOD)).encode())
    assert found.found == "the same content in another layout, first in line 1"
    (found,) = refusals(GOOD, "other.digests.json")
    assert (found.where, found.found) == ("manifests/other.digests.json: .image", "demo")
    document = json.loads(GOOD)
    document["platforms"]["linux/amd64"]["layers"] *= 2
    (found,) = refusals(json.dumps(document).encode())
    assert (found.where, found.expected) == (
        "manifests/demo.digests.json: .platforms.linux/amd64.layers",
        "each layer once",
    )


def test_a_sketch_that_is_none() -> None:
    document = json.loads(GOOD)
    document["platforms"]["linux/amd64"]["layers"][0]["sketch"] = "AAAA"
    (found,) = refusals(json.dumps(document).encode())
    assert found.where == "manifests/demo.digests.json: .platforms.linux/amd64: sketch of layer base"
    assert (found.expected, found.found) == ("a sketch of files", "3 bytes, not 4272")


def test_nothing_is_written_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Buildable(tmp_path)
    world.project.digests(IMAGE).write_text("{}")
    for words in ([], ["--record"]):
        status, said = world.nvllm(capsys, "build", IMAGE, "--layout", str(tmp_path / "out"), *words)
        assert (status, {one["code"] for one in said["refusals"]}) == (3, {"NV309"})
        assert not (tmp_path / "out").exists()
    assert world.project.digests(IMAGE).read_text() == "{}"
