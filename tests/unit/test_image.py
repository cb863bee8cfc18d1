"""Images: the id over the configuration, the stream that an engine loads, and the OCI layout."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from nvllm import image, tarlayer
from nvllm.image import Image
from nvllm.progress import Silent
from nvllm.tarlayer import Layer

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
    return image.assemble(
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


def test_time_zones_do_not_reach_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    assert image.timestamp(EPOCH) == "2025-10-09T08:53:20Z"
    assert image.timestamp(0) == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize("skip", [0, 1, 2, 3])
def test_an_archive_is_a_docker_archive_without_the_bytes_of_the_lowest_layers(tmp_path: Path, skip: int) -> None:
    layers = _layers(tmp_path, b"one", b"two" * 1000, b"")
    made = _assemble(layers)
    data = b"".join(image.archive(made, ["demo:a", "demo:latest"], skip))
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        content = {name: stream.read() for name, stream in found.items() if stream is not None}
    (manifest,) = json.loads(content.pop("manifest.json"))
    assert manifest["RepoTags"] == ["demo:a", "demo:latest"]
    config = content.pop(manifest["Config"])
    assert config == made.config
    assert "sha256:" + hashlib.sha256(config).hexdigest() == made.id
    names = [f"{layer.diff_id.removeprefix('sha256:')}/layer.tar" for layer in layers]
    assert manifest["Layers"] == names
    assert content == {name: layer.path.read_bytes() for name, layer in list(zip(names, layers, strict=True))[skip:]}


def test_an_archive_is_the_same_twice(tmp_path: Path) -> None:
    made = _assemble(_layers(tmp_path, b"one"))
    assert b"".join(image.archive(made, ["a"], 0)) == b"".join(image.archive(made, ["a"], 0))


@pytest.mark.parametrize("size", [0, 511, 512, 8 * 2**30 - 1, 8 * 2**30, 9 * 2**30, 2**40])
def test_layers_of_more_than_8_GiB_have_their_size_in_the_header(size: int) -> None:  # noqa: N802
    header = next(image._member("a/layer.tar", [], size))
    assert len(header) == 512
    info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
    assert (info.name, info.size, info.mode) == ("a/layer.tar", size, 0o644)


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
    digest = image.write_layout(made, "demo", "linux/amd64", EPOCH, layout)
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout / "index.json").read_bytes())
    (entry,) = index["manifests"]
    assert entry["digest"] == digest
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
    digests = {image.write_layout(made, "demo", "linux/amd64", EPOCH, tmp_path / name) for name in ("a", "b")}
    assert len(digests) == 1
    assert (tmp_path / "a/index.json").read_bytes() == (tmp_path / "b/index.json").read_bytes()
    assert len(os.listdir(tmp_path / "a/blobs/sha256")) == 3


def test_layers_are_copied_where_they_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system is not at hand in a unit test, so linking is made to fail as it does across two."""

    def across(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", across)
    (layer,) = _layers(tmp_path, b"one")
    image.write_layout(_assemble([layer]), "demo", "linux/amd64", EPOCH, tmp_path / "layout")
    copied = tmp_path / "layout/blobs/sha256" / layer.diff_id.removeprefix("sha256:")
    assert copied.read_bytes() == layer.path.read_bytes()
