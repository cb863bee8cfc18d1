"""Images: the two ids, over the configuration and over the manifest, and the OCI layout."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from nvllm.core.progress import Silent
from nvllm.layers import oci, tarlayer
from nvllm.layers.oci import Descriptor, Image, Lower
from nvllm.layers.tarlayer import Layer

EPOCH = 1_760_000_000
HEX = st.text("0123456789abcdef", min_size=64, max_size=64).map(lambda digits: f"sha256:{digits}")


def _layers(tmp_path: Path, *texts: bytes) -> list[Layer]:
    return [
        tarlayer.write(
            f"kind{n}", [tarlayer.blob("a", text)], epoch=EPOCH, path=tmp_path / f"{n}.tar", progress=Silent()
        )
        for n, text in enumerate(texts)
    ]


def _assemble(layers: Sequence[Layer]) -> Image:
    return oci.assemble(
        layers,
        platform="linux/amd64",
        epoch=EPOCH,
        entrypoint=["tool", "serve"],
        environment={"PATH": "/usr/bin", "A": "1"},
        labels={"nvllm.image": "demo"},
    )


def test_a_small_image_has_the_id_that_it_always_had(tmp_path: Path) -> None:
    made = _assemble(_layers(tmp_path, b"one", b"two"))
    assert made.id == "sha256:e93a798548de08a89dfe0cea13e28cd1ef215a671fc41a6b086e4c193d1f9420"
    assert json.loads(made.config) == {
        "architecture": "amd64",
        "os": "linux",
        "created": "2025-10-09T08:53:20Z",
        "config": {
            "Entrypoint": ["tool", "serve"],
            "Env": ["A=1", "PATH=/usr/bin"],
            "Labels": {"nvllm.image": "demo"},
            "User": "65534:65534",
            "WorkingDir": "/",
        },
        "history": [
            {"created": "2025-10-09T08:53:20Z", "created_by": "nvllm layer kind0"},
            {"created": "2025-10-09T08:53:20Z", "created_by": "nvllm layer kind1"},
        ],
        "rootfs": {"type": "layers", "diff_ids": list(made.diff_ids)},
    }


def test_the_manifest_is_a_second_id(tmp_path: Path) -> None:
    made = _assemble(_layers(tmp_path, b"one", b"two"))
    assert made.manifest is not None
    assert made.ids == (made.id, "sha256:" + hashlib.sha256(made.manifest).hexdigest())
    assert made.ids[1] == "sha256:c7d6dbb854626d06fddcf0ce1d40312d2509f00bd59578fd511b2d6877316e65"


def test_an_image_on_a_base_has_a_manifest_only_if_the_blobs_of_the_base_are_known(tmp_path: Path) -> None:
    layers = _layers(tmp_path, b"one")
    blob = Descriptor("application/vnd.oci.image.layer.v1.tar+gzip", f"sha256:{64 * '2'}", 9)
    known = replace(_assemble(layers), below=(Lower(f"sha256:{64 * '1'}", blob),))
    assert known.manifest is not None
    assert json.loads(known.manifest)["layers"][0] == {"mediaType": blob.media_type, "digest": blob.digest, "size": 9}
    unknown = replace(known, below=(Lower(f"sha256:{64 * '1'}"),))
    assert (unknown.manifest, unknown.ids) == (None, (unknown.id,))
    assert unknown.diff_ids == known.diff_ids


def _blob(layout: Path, descriptor: dict[str, Any]) -> bytes:
    algorithm, _, digest = descriptor["digest"].partition(":")
    data = Path(layout, "blobs", algorithm, digest).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    assert len(data) == descriptor["size"]
    return data


def test_an_oci_layout_holds_what_its_digests_say(tmp_path: Path) -> None:
    layers = _layers(tmp_path, b"one", b"two")
    made = _assemble(layers)
    layout = tmp_path / "layout"
    digest = oci.write_layout(made, "demo", layout)
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout / "index.json").read_bytes())
    (entry,) = index["manifests"]
    assert entry["digest"] == digest == made.ids[1]
    assert entry["platform"] == {"os": "linux", "architecture": "amd64"}
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "demo"}
    manifest = json.loads(_blob(layout, entry))
    assert (manifest["schemaVersion"], manifest["mediaType"]) == (2, entry["mediaType"])
    assert _blob(layout, manifest["config"]) == made.config
    assert manifest["config"]["digest"] == made.id
    assert [_blob(layout, one) for one in manifest["layers"]] == [layer.path.read_bytes() for layer in layers]
    assert [one["digest"] for one in manifest["layers"]] == list(made.diff_ids)
    assert {one["mediaType"] for one in manifest["layers"]} == {"application/vnd.oci.image.layer.v1.tar"}
    named = {one["digest"] for one in (entry, manifest["config"], *manifest["layers"])}
    assert {f"sha256:{name}" for name in os.listdir(layout / "blobs/sha256")} == named, "nothing else is in it"


def test_a_layout_is_the_same_twice_and_two_equal_layers_are_one_blob(tmp_path: Path) -> None:
    made = _assemble(_layers(tmp_path, b"same", b"same"))
    digests = {oci.write_layout(made, "demo", tmp_path / name) for name in ("a", "b")}
    assert len(digests) == 1
    assert (tmp_path / "a/index.json").read_bytes() == (tmp_path / "b/index.json").read_bytes()
    assert len(os.listdir(tmp_path / "a/blobs/sha256")) == 3


def test_layers_are_copied_where_they_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system is not at hand in a unit test, so linking is made to fail as it does across two."""

    def across(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", across)
    (layer,) = _layers(tmp_path, b"one")
    oci.write_layout(_assemble([layer]), "demo", tmp_path / "layout")
    copied = tmp_path / "layout/blobs/sha256" / layer.diff_id.removeprefix("sha256:")
    assert copied.read_bytes() == layer.path.read_bytes()
