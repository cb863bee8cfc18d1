"""vLLM's extensions of a set: when they are compiled, from what, and what of it enters the image."""

from __future__ import annotations

import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.image import builder
from support.native_world import EXTENSION, SOURCE, NativeWorld


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NativeWorld:
    return NativeWorld(tmp_path, monkeypatch)


def extension(world: NativeWorld, *names: str) -> str | None:
    """Return what the layers of the set NAMES put in the place of the published extension, if anything."""
    layers = [layer for layer in world.builder(*names).patches() if layer.kind == "native"]
    for layer in layers:
        with tarfile.open(layer.path) as tar:
            (member,) = [entry for entry in tar if entry.isreg()]
            assert member.name.endswith(f"site-packages/{EXTENSION}")
            assert member.mode == 0o755
            stream = tar.extractfile(member)
            assert stream is not None
            return stream.read().decode()
    return None


def test_only_native_patches_compile_and_each_native_part_once(world: NativeWorld) -> None:
    """What a bisect walks through: of sets that differ in Python alone, one is compiled."""
    sets = [(), ("python",), ("native",), ("python", "native"), ("native", "both"), ("native", "both", "python")]
    made = [extension(world, *names) for names in sets]
    compiled = [text for text in made if text is not None]
    assert made[:2] == [None, None]
    assert [a == b for a, b in pairwise(compiled)] == [True, False, True]
    assert len(world.engine.directories) == 2
    assert len(set(world.engine.directories)) == 1  # what ninja keeps is there for the second


def test_a_set_without_native_patches_has_the_build_hash_that_it_had(world: NativeWorld) -> None:
    with_field, native = world.build("python"), world.build("python", "native")
    world.how = None
    assert with_field.build_hash == world.build("python").build_hash
    assert "native" in native.factors
    assert "native" not in world.build("python", "native").factors


def test_the_source_follows_the_set_and_what_stays_keeps_its_time(world: NativeWorld) -> None:
    extension(world, "native", "both")
    (directory,) = world.engine.directories
    assert directory in map(world.cache.tree, builder.trees(world.world.lock))  # so `nvllm gc` keeps it
    tree = directory / "vllm"
    before = {path: path.stat().st_mtime_ns for path in sorted(tree.rglob("*")) if path.is_file()}
    assert {str(path.relative_to(tree)) for path in before} == {
        "CMakeLists.txt", "csrc/new.h", "csrc/one.cpp", "csrc/two.cpp",
    }  # fmt: skip
    assert (directory / "sources/OTHER/x.c").read_bytes() == b"x"
    world.engine.directories.clear()
    extension(world, "both")
    after = {path: path.stat().st_mtime_ns for path in sorted(tree.rglob("*")) if path.is_file()}
    assert (tree / "csrc/one.cpp").read_bytes() == SOURCE["csrc/one.cpp"]
    assert {path.name for path in before if before[path] != after[path]} == {"one.cpp"}
    extension(world, "native")
    assert not (tree / "csrc/new.h").exists()


def test_a_file_that_a_killed_build_left_torn_is_written_again(world: NativeWorld) -> None:
    extension(world, "native")
    (directory,) = world.engine.directories
    (directory / "vllm/csrc/two.cpp").write_bytes(b"int t")
    extension(world, "both")
    assert (directory / "vllm/csrc/two.cpp").read_bytes() == SOURCE["csrc/two.cpp"]


@pytest.mark.parametrize(("names", "declared"), [(("native",), False), (("build",), True), (("native", "build"), True)])
def test_what_cmake_does_not_compile_is_refused_as_before(
    world: NativeWorld, names: tuple[str, ...], declared: bool
) -> None:
    if not declared:
        world.how = None
    with pytest.raises(Refused) as caught:
        world.builder(*names).patches()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found) == ("NV301", "a file that has to be compiled")
    assert ".vllm.native" in refusal.cure
    assert not world.engine.directories
