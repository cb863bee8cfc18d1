"""A patch of vLLM's C++: compiled by `nvllm build`, proved in the image, and compiled again to the same bytes.

It compiles the extension with one source file. `_C` takes the same way with 456 objects (docs/native.md).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from support.engine_world import IMAGE, World, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

FILES = Path(__file__).parent / "native"
NATIVE = """\
  native:
    device: cpu
    targets: [fs_io_C]
    tools: [cmake==4.4.4, ninja==1.13.2]
    sources:
      FETCHCONTENT_SOURCE_DIR_ONEDNN:
        index: debian
        path: pool/main/o/onednn/onednn_3.7.2+ds.orig.tar.xz
        sha256: 0cc51ca26c1af6a2bb1e71e378e7046f3ceb3e71791ee9d4e246d50f904a6ea6
        size: 9898052

python:
  requirements:
"""
PROOF = "proofs/test_fs_io.py::test_a_path_with_a_null_byte_names_no_other_file"
PATCHES = ("compiler-12-2", "path-null")


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    """A world that compiles, with two native patches in its set. The images that it makes go again."""
    before = {tag for image in docker_client.images.list("nvllm") for tag in image.tags}
    enabled = "    - grammar-refusal\n"
    made = worlds.make(
        {
            "    - libnuma1 #": "    - libnuma-dev\n    - libnuma1 #",
            "python:\n  requirements:\n": NATIVE,
            enabled: enabled + "".join(f"    - {name}\n" for name in PATCHES),
        }
    )
    for tree in made.places.layers.glob("*.tree"):  # the user's own, which this test must not compile in
        tree.unlink()
    (made.project.root / "proofs").mkdir()
    shutil.copyfile(FILES / "proof.py", made.project.root / "proofs/test_fs_io.py")
    for name in PATCHES:
        done = made.nvllm("patch", "add", "v0.32.0", str(FILES / f"{name}.patch"), "--id", name, "--proved-by", PROOF)
        assert done.code == 0, done
    yield made
    made.end()
    for tag in {tag for image in docker_client.images.list("nvllm") for tag in image.tags} - before:
        docker_client.api.remove_image(tag)


def extensions(world: World) -> dict[Path, str]:
    """Return the layers of extensions in the cache of WORLD: their notes, and their digests."""
    notes = {path: json.loads(path.read_bytes()) for path in world.places.layers.glob("*.json")}
    return {path: note["diff_id"] for path, note in notes.items() if note["kind"] == "native"}


def test_a_native_patch_is_compiled_and_proved_and_only_it_compiles(world: World, tmp_path: Path) -> None:
    locked = world.nvllm("lock", IMAGE, "--json")
    assert locked.code == 0, locked
    left = extensions(world)
    for path in left:  # of the user, by this very test
        path.unlink()
    proved = world.nvllm("patch", "prove", IMAGE, "path-null", "--json")
    assert proved.code == 0, proved
    (patch,) = proved.document["result"]["patches"]
    assert [test["record"]["verdict"] for test in patch["tests"]] == ["proved"]
    made = extensions(world)
    assert len(set(made.values())) == 2  # of the set, and of the set without the patch

    others = world.nvllm(
        "build", IMAGE, "--patches", ",".join(PATCHES), "--layers-only", "--layout", str(tmp_path / "a")
    )
    assert others.code == 0, others
    assert "layer native" not in others.err
    assert extensions(world) == made

    for path in made:
        path.unlink()
    (objects,) = [tree.parent for tree in world.places.layers.glob("*.tree/objects")]
    shutil.rmtree(objects)
    again = world.nvllm("build", IMAGE, "--layers-only", "--layout", str(tmp_path / "b"))
    assert again.code == 0, again
    assert "layer native" in again.err
    assert extensions(world).items() <= made.items()
