"""What images hold: layouts, archives, directories of layers, and what engines save, all read as the same image."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.image import contents, difference, recording
from nvllm.image.contents import Contents
from nvllm.layers import archive, oci, tarlayer
from nvllm.layers.oci import Image
from nvllm.layers.tarlayer import Layer


def made(place: Path, kind: str, data: bytes) -> Layer:
    return tarlayer.write(
        kind, [tarlayer.blob(f"opt/{kind}", data)], epoch=1, path=place / f"{kind}.tar", progress=Silent()
    )


@pytest.fixture
def image(tmp_path: Path) -> Image:
    layers = [made(tmp_path, kind, kind.encode()) for kind in ("base", "top")]
    return oci.assemble(layers, platform="linux/amd64", epoch=1, entrypoint=["x"], environment={"A": "b"}, labels={})


def layout(image: Image, place: Path) -> Path:
    oci.write_layout(image, "demo", place)
    return place


def packed(directory: Path, path: Path) -> Path:
    """Write the files of DIRECTORY into the archive PATH."""
    with tarfile.open(path, "w") as tar:
        tar.add(directory, ".")
    return path


def archived(files: Mapping[str, bytes], path: Path, links: Mapping[str, str] | None = None) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def opened(path: Path, scratch: Path) -> Contents:
    scratch.mkdir(exist_ok=True)
    found = contents.stored(str(path), scratch)
    assert found is not None
    return found


def read(image: Contents) -> dict[str, bytes]:
    return {layer.name: layer.tar().head(1 << 30) for layer in image.layers}


def test_a_layout_a_tar_of_it_and_what_an_engine_is_sent_are_the_same_image(tmp_path: Path, image: Image) -> None:
    directory = layout(image, tmp_path / "layout")
    sent = tmp_path / "sent.tar"
    sent.write_bytes(b"".join(archive.stream(image, "nvllm:demo", 0)))
    expected = {layer.kind: layer.path.read_bytes() for layer in image.layers}
    first = opened(directory, tmp_path / "s")
    for path in (directory, packed(directory, tmp_path / "layout.tar"), sent):
        found = opened(path, tmp_path / "s")
        assert read(found) == expected
        assert [layer.diff_id for layer in found.layers] == list(image.diff_ids)
        assert list(difference.images(first, found)) == []
    same = contents.of_image("made", image)
    assert list(difference.images(first, same)) == []


def test_what_the_classic_store_of_docker_saves(tmp_path: Path, image: Image) -> None:
    """It has no index, a directory for each layer, and a link where two layers have the same bytes."""
    one = made(tmp_path, "one", b"1").path.read_bytes()
    digest = "sha256:" + hashlib.sha256(one).hexdigest()
    config = {"os": "linux", "rootfs": {"diff_ids": [digest, digest]}, "history": [{"created_by": "RUN x"}]}
    files = {
        "aaa/layer.tar": one,
        "c.json": json.dumps(config).encode(),
        "manifest.json": json.dumps([{"Config": "c.json", "Layers": ["aaa/layer.tar", "bbb/layer.tar"]}]).encode(),
    }
    path = archived(files, tmp_path / "saved.tar", {"bbb/layer.tar": "../aaa/layer.tar"})
    assert read(opened(path, tmp_path / "s")) == {"number 1": one, "number 2": one}


def test_compressed_layers_and_an_index_of_an_index(tmp_path: Path) -> None:
    """As registries and BuildKit have them, with an attestation beside the image."""
    tar = made(tmp_path, "one", b"1").path.read_bytes()
    blobs: dict[str, bytes] = {}

    def stored(data: bytes) -> dict[str, object]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        blobs[oci.blob(digest)] = data
        return {"digest": digest, "size": len(data)}

    diff_id = "sha256:" + hashlib.sha256(tar).hexdigest()
    config = stored(json.dumps({"rootfs": {"diff_ids": [diff_id]}}).encode())
    manifest = stored(json.dumps({"config": config, "layers": [stored(gzip.compress(tar))]}).encode())
    attestation = {**stored(b"{}"), "platform": {"os": "unknown", "architecture": "unknown"}}
    inner = stored(json.dumps({"manifests": [manifest, attestation]}).encode())
    blobs["index.json"] = json.dumps({"manifests": [inner]}).encode()
    assert read(opened(archived(blobs, tmp_path / "a.tar"), tmp_path / "s")) == {"number 1": tar}


def test_layers_without_an_image(tmp_path: Path, image: Image) -> None:
    recording.keep(tmp_path / "kept", {"built": image.layers})
    found = opened(tmp_path / "kept/built", tmp_path / "s")
    assert found.configuration is None
    assert read(found) == {layer.kind: layer.path.read_bytes() for layer in image.layers}


def refused(path: Path, scratch: Path) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        opened(path, scratch)
    (refusal,) = caught.value.refusals
    return refusal.code, refusal.found


def test_what_is_damaged_or_no_image_is_refused(tmp_path: Path, image: Image) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty", tmp_path / "s")[0] == "NV306"
    (tmp_path / "text").write_text("no archive")
    assert refused(tmp_path / "text", tmp_path / "s")[0] == "NV306"
    directory = layout(image, tmp_path / "layout")
    shutil.rmtree(directory / "blobs")
    assert refused(directory, tmp_path / "s")[0] == "NV306"
    (directory / "index.json").write_text("{")
    assert refused(directory, tmp_path / "s")[0] == "NV306"


def test_a_fifo_in_the_place_of_a_file(tmp_path: Path, image: Image) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert refused(tmp_path / "fifo", tmp_path / "s") == ("NV306", f"OSError: [Errno 22] a FIFO: '{tmp_path}/fifo'")
    directory = layout(image, tmp_path / "layout")
    (directory / "index.json").unlink()
    os.mkfifo(directory / "index.json")
    assert refused(directory, tmp_path / "s")[0] == "NV306"


def test_a_layer_that_is_torn_is_refused_when_it_is_read(tmp_path: Path) -> None:
    files = {
        "c.json": json.dumps({"rootfs": {"diff_ids": [f"sha256:{64 * 'a'}", f"sha256:{64 * 'b'}"]}}).encode(),
        "manifest.json": json.dumps([{"Config": "c.json", "Layers": ["one", "gone"]}]).encode(),
        "one": gzip.compress(b"x" * 1000)[:-9],
    }
    found = opened(archived(files, tmp_path / "a.tar"), tmp_path / "s")
    for layer in found.layers:
        with pytest.raises(Refused, match="NV306"):
            layer.tar()


def test_two_images_in_one_archive_are_refused(tmp_path: Path) -> None:
    path = archived({"manifest.json": b"[{}, {}]"}, tmp_path / "two.tar")
    assert refused(path, tmp_path / "s") == ("NV108", "2 images")


def test_what_is_no_path_is_for_the_engine(tmp_path: Path) -> None:
    assert contents.stored(str(tmp_path / "none"), tmp_path) is None
