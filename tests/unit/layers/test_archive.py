"""The archive that every engine reads: Docker's documents and OCI's over the same blobs, and what it may leave out."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.progress import Silent
from nvllm.layers import archive, oci, tarlayer
from nvllm.layers.oci import Descriptor, Image, Lower
from nvllm.layers.tarlayer import Layer

EPOCH = 1_760_000_000
PACKED = Descriptor("application/vnd.oci.image.layer.v1.tar+gzip", f"sha256:{64 * '2'}", 9)
BASE = Lower(f"sha256:{64 * '1'}", PACKED)


def _layers(tmp_path: Path, *texts: bytes) -> list[Layer]:
    return [
        tarlayer.write(
            f"kind{n}", [tarlayer.blob("a", text)], epoch=EPOCH, path=tmp_path / f"{n}.tar", progress=Silent()
        )
        for n, text in enumerate(texts)
    ]


def _image(tmp_path: Path, *texts: bytes, below: tuple[Lower, ...] = ()) -> Image:
    return oci.assemble(
        _layers(tmp_path, *texts),
        platform="linux/arm64",
        epoch=EPOCH,
        entrypoint=["tool"],
        environment={"PATH": "/usr/bin"},
        labels={"nvllm.image": "demo"},
        below=below,
    )


def _content(made: Image, skip: int) -> dict[str, bytes]:
    data = b"".join(archive.stream(made, "demo:a", skip))
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(set(tar.getnames())) == len(tar.getnames()), "nothing is in it twice"
        streams = {member.name: tar.extractfile(member) for member in tar}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}


def _at(content: dict[str, bytes], digest: str) -> bytes:
    return content[f"blobs/sha256/{digest.removeprefix('sha256:')}"]


def _blobs(content: dict[str, bytes]) -> set[str]:
    found = {name for name in content if name.startswith("blobs/")}
    for name in found:
        assert hashlib.sha256(content[name]).hexdigest() == name.rpartition("/")[2]
    return {f"sha256:{name.rpartition('/')[2]}" for name in found}


@pytest.mark.parametrize("skip", [0, 1, 2, 3])
def test_both_kinds_of_documents_say_the_same_over_the_same_blobs(tmp_path: Path, skip: int) -> None:
    made = _image(tmp_path, b"one", b"two" * 1000, b"")
    content = _content(made, skip)
    (docker,) = json.loads(content["manifest.json"])
    assert docker["RepoTags"] == ["demo:a"]
    assert content[docker["Config"]] == made.config
    assert docker["Layers"] == [f"blobs/sha256/{one.removeprefix('sha256:')}" for one in made.diff_ids]
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(content["index.json"])["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/library/demo:a"}
    assert entry["platform"] == {"os": "linux", "architecture": "arm64"}
    manifest = json.loads(_at(content, entry["digest"]))
    assert [one["digest"] for one in manifest["layers"]] == list(made.diff_ids)
    assert (manifest["config"]["digest"], entry["digest"]) == made.ids
    assert _blobs(content) == {*made.ids, *(layer.diff_id for layer in made.layers[skip:])}


def test_the_manifest_is_that_of_the_layout(tmp_path: Path) -> None:
    made = _image(tmp_path, b"one")
    digest = oci.write_layout(made, "demo", tmp_path / "layout")
    written = (tmp_path / "layout/blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()
    assert _at(_content(made, 0), digest) == written


def test_two_equal_layers_are_sent_once_and_a_left_out_one_is_sent_if_it_stands_above_as_well(tmp_path: Path) -> None:
    made = _image(tmp_path, b"same", b"same")
    assert len(made.layers) == 2
    for skip in (0, 1):
        assert [layer.diff_id for layer in archive.sent(made, skip)] == [made.diff_ids[0]]
        assert made.diff_ids[0] in _blobs(_content(made, skip))
    assert archive.sent(made, 2) == ()


@pytest.mark.parametrize("skip", [0, 1])
def test_layers_of_a_base_that_an_engine_holds_are_named_and_never_sent(tmp_path: Path, skip: int) -> None:
    made = _image(tmp_path, b"one", below=(BASE,))
    content = _content(made, skip)
    (own,) = made.layers
    assert _blobs(content) == {*made.ids, own.diff_id}
    assert json.loads(_at(content, made.ids[1]))["layers"][0] == PACKED.document()
    assert json.loads(made.config)["rootfs"]["diff_ids"] == [BASE.diff_id, own.diff_id]


def test_without_the_blobs_of_the_base_there_is_no_manifest_and_no_index(tmp_path: Path) -> None:
    made = _image(tmp_path, b"one", below=(replace(BASE, blob=None),))
    content = _content(made, 1)
    assert {name for name in content if not name.startswith("blobs/")} == {"manifest.json"}
    assert _blobs(content) == {made.id, made.layers[0].diff_id}


def test_an_archive_is_the_same_twice(tmp_path: Path) -> None:
    made = _image(tmp_path, b"one")
    assert b"".join(archive.stream(made, "a", 0)) == b"".join(archive.stream(made, "a", 0))


@pytest.mark.parametrize("size", [0, 511, 512, 8 * 2**30 - 1, 8 * 2**30, 9 * 2**30, 2**40])
def test_layers_of_more_than_8_GiB_have_their_size_in_the_header(size: int) -> None:  # noqa: N802
    header = next(archive.entry("blobs/sha256/a", [], size))
    assert len(header) == 512
    info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
    assert (info.name, info.size, info.mode) == ("blobs/sha256/a", size, 0o644)


# What an engine saves


def _saved(*documents: Any, chunk: int = 700) -> Iterator[bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("blobs"))
        for number, one in enumerate(documents):
            data = one if isinstance(one, bytes) else json.dumps(one).encode()
            info = tarfile.TarInfo(f"blobs/{number}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    data = out.getvalue()
    return iter([data[at : at + chunk] for at in range(0, len(data), chunk)])


def _manifest(config: Any) -> dict[str, Any]:
    digest = oci.sha256(json.dumps(config).encode())
    return {"schemaVersion": 2, "config": {"digest": digest}, "layers": [PACKED.document()]}


CONFIG = {"rootfs": {"diff_ids": [BASE.diff_id]}}


def test_the_blobs_of_a_base_are_those_of_the_manifest_whose_configuration_names_its_layers() -> None:
    other = {"rootfs": {"diff_ids": [f"sha256:{64 * '9'}"]}}
    found = archive.blobs(
        _saved(b"\x1f\x8b no document", _manifest(other), _manifest(CONFIG), other, CONFIG), [BASE.diff_id]
    )
    assert found == (PACKED,)


def test_an_archive_of_dockers_own_has_the_layers_themselves() -> None:
    docker = [{"Config": "blobs/2", "Layers": ["blobs/0"]}]
    found = archive.blobs(_saved(bytes(5 << 20), docker, CONFIG), [BASE.diff_id])
    assert found == (Descriptor("application/vnd.oci.image.layer.v1.tar", BASE.diff_id, 5 << 20),)
    assert archive.blobs(_saved(b"", [{"Config": "blobs/2", "Layers": ["gone"]}], CONFIG), [BASE.diff_id]) is None
    assert archive.blobs(_saved(b"", [{"Config": "blobs/2", "Layers": []}], CONFIG), [BASE.diff_id]) is None


def test_no_such_manifest_is_none() -> None:
    assert archive.blobs(_saved({}, [], _manifest(CONFIG)), [BASE.diff_id]) is None
    assert archive.blobs(_saved(CONFIG, _manifest(CONFIG)), [PACKED.digest]) is None
    assert archive.blobs(_saved({"layers": []}, {"layers": [], "config": 1}), []) is None


def test_only_the_names_of_killed_loads_are_left() -> None:
    old, recent = archive.temporary(1000), archive.temporary(5000)
    assert old != archive.temporary(1000)
    assert list(archive.left([old, recent, "nvllm:cpu", "nvllm:loading-x", "other:loading-1-2"], 4000)) == [old]
