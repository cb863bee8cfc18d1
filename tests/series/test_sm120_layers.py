"""Images sm120 and sm120-v033 on the command line: spec, series, source and compilers, the layers of the patch set.

The wheels of sm120 have 3.9 GB, of which the two that these layers are made from have 436 MB for one platform. `cut`
stands for them in the small: a wheel of vLLM with the files of the source archive, whose Python files are the wheel's,
and one of Triton with what is read of the image's. An image by its name is tested with its lock as it is, with the real
wheels of both platforms; sm120-v033 by that alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.canonical import sha256_file
from nvllm.core.lock import LockedFile, LockedWheel
from nvllm.core.paths import Places, Project, places
from nvllm.core.progress import Silent
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder
from nvllm.kernels import check as kernelcheck
from nvllm.lock import lockdoc
from nvllm.sources.store import Store
from support import kernel_samples, layersamples
from support.engine_world import Done, run

pytestmark = pytest.mark.series

ROOT = Path(__file__).parents[2]
IMAGE = "sm120"
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
TARGETS = ["sm_120a", "sm_121a"]
COMPARED = (".py", ".c", ".h", ".bc")
"""What of Triton's wheel for the image must be as in the host's."""


@dataclass
class World:
    """A project, and a home of its own over a store that is filled."""

    project: Path
    home: Path
    image: str = IMAGE
    layouts: dict[str, Path] = field(default_factory=dict)

    def nvllm(self, *args: str, platform: str) -> Done:
        env = {**os.environ, "NVLLM_HOME": str(self.home)}
        command = [sys.executable, "-m", "nvllm", "--project", str(self.project), "--platform", platform, "--json"]
        return run([*command, *args], env)

    def layers(self, platform: str) -> dict[str, Any]:
        """What ``layers.json`` says of the layers for PLATFORM, which are built once."""
        if platform not in self.layouts:
            self.layouts[platform] = self.home / f"layers-{MACHINES[platform]}"
            built = self.nvllm(
                "build", self.image, "--layers-only", "--layout", str(self.layouts[platform]), platform=platform
            )
            result = dict(built.result)
            said = result.pop("record")
            assert result == json.loads((self.layouts[platform] / "layers.json").read_text())
            # `cut` has locks of its own, of which nothing was recorded.
            assert said == ("as recorded" if self.project == ROOT else "not recorded")
        found: dict[str, Any] = json.loads((self.layouts[platform] / "layers.json").read_text())
        return found

    def kernels(self, platform: str) -> Path:
        """The blob of the kernels layer for PLATFORM."""
        digest: str = self.layers(platform)["layers"][-1]["diff_id"].removeprefix("sha256:")
        return self.layouts[platform] / "blobs/sha256" / digest


@pytest.fixture(scope="module")
def cut(sources: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> World:
    """The project with locks of two small wheels, and what these locks name in the store of a home."""
    project, home = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("home")
    store = Store(home / "cache/store")
    for name in ("vllm-0.21.0", "triton", "ziglang"):
        copy = shutil.copy(sources(name), project / name)
        store.adopt(Path(copy), sha256_file(Path(copy)))
    for name in ("images", "patches"):
        (project / name).symlink_to(ROOT / name)
    (project / "manifests").mkdir()
    vllm = layersamples.wheel(project, "vllm", _source(sources("vllm-0.21.0")), "0.21.0")
    made = {"vllm": _stored(store, "vllm", vllm)}
    for platform, machine in MACHINES.items():
        made["triton"] = _stored(store, "triton", _triton(sources("triton"), project / machine, machine))
        real = Project(ROOT, platform)
        lock = lockdoc.read(real.lock(IMAGE), real.show(real.lock(IMAGE)))
        versions = {wheel.name: wheel.version for wheel in lock.wheels}
        wheels = tuple(replace(made[name], version=versions[name]) for name in ("triton", "vllm"))
        lockdoc.write(Project(project, platform).lock(IMAGE), replace(lock, wheels=wheels))
    return World(project, home)


@pytest.fixture(
    scope="module", params=["cut", *(pytest.param(image, marks=pytest.mark.long) for image in (IMAGE, "sm120-v033"))]
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    if request.param == "cut":
        found: World = request.getfixturevalue("cut")
        return found
    home, store = tmp_path_factory.mktemp("home"), places(dict(os.environ)).store
    store.mkdir(parents=True, exist_ok=True)
    (home / "cache").mkdir()
    (home / "cache/store").symlink_to(store)
    return World(ROOT, home, request.param)


def _stored(store: Store, name: str, path: Path) -> LockedWheel:
    file = LockedFile(path.name, sha256_file(path), path.stat().st_size, "pypi")
    store.adopt(path, file.sha256)
    return LockedWheel(name, "", file)


def _source(archive: Path) -> dict[str, bytes | layersamples.Packed]:
    """The package in the source ARCHIVE, with the modes that it has there."""
    found: dict[str, bytes | layersamples.Packed] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            stream = tar.extractfile(member) if member.isreg() and path.startswith("vllm/") else None
            if stream is not None:
                found[path] = layersamples.Packed(stream.read(), member.mode)
    return found


def _triton(host: Path, directory: Path, machine: str) -> Path:
    directory.mkdir()
    with zipfile.ZipFile(host) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist() if name.endswith(COMPARED)}
    files |= {
        "triton/_C/libtriton.so": f"the library for {machine}".encode(),
        "triton/backends/nvidia/bin/ptxas": kernel_samples.ptxas("12.8"),
        "triton/backends/nvidia/bin/ptxas-blackwell": kernel_samples.ptxas(),
    }
    return layersamples.wheel(directory, "triton", files, "3.6.0")


EACH = ["linux/amd64", pytest.param("linux/arm64", marks=pytest.mark.long)]
"""The platforms. What is made for the second, by the same steps, takes a minute."""


@pytest.mark.parametrize("platform", EACH)
def test_the_layout_holds_the_layers_that_it_lists(world: World, platform: str) -> None:
    about = world.layers(platform)
    kinds = [one["kind"] for one in about["layers"]]
    assert kinds[-2:] == ["record", "kernels"]
    assert {kind.partition(" ")[0] for kind in kinds[:-2]} == {"patches"}
    assert (about["image"], about["platform"]) == (world.image, platform)
    assert about["base"] is None  # Debian's packages, which these layers are built without
    foretold = world.nvllm("build", world.image, "--dry-run", platform=platform).result
    assert about["build_hash"] == foretold["build_hash"]
    blobs = {path.name: path for path in (world.layouts[platform] / "blobs/sha256").iterdir()}
    assert {"sha256:" + name for name in blobs} == {one["diff_id"] for one in about["layers"]}
    for one in about["layers"]:
        data = blobs[one["diff_id"].removeprefix("sha256:")].read_bytes()
        assert (len(data), "sha256:" + hashlib.sha256(data).hexdigest()) == (one["size"], one["diff_id"])


@pytest.mark.long
def test_both_platforms_have_the_same_patches_and_the_same_code(world: World) -> None:
    """Their kernels layers differ in the modules in C, and in the keys, which hold the hash of Triton's library."""
    amd64, arm64 = (world.layers(platform)["layers"] for platform in MACHINES)
    assert [one for one in amd64 if one["kind"].startswith("patches ")] == [
        one for one in arm64 if one["kind"].startswith("patches ")
    ]
    assert amd64[-1]["diff_id"] != arm64[-1]["diff_id"]
    code, keys = [], []
    for platform in MACHINES:
        files = kernelcheck.content(world.kernels(platform))
        code.append(sorted(data for path, data in files.items() if path.endswith(".cubin")))
        keys.append({path.partition("/")[0] for path in files if path.endswith(".cubin")})
    assert code[0] == code[1]
    assert len(code[0]) == len(keys[0]) == len(keys[1]) >= len(TARGETS)
    assert not keys[0] & keys[1]


@pytest.mark.parametrize("platform", EACH)
def test_the_kernels_are_built_listed_and_proved(world: World, platform: str) -> None:
    about = world.layers(platform)["layers"][-1]
    built = world.nvllm("kernels", "build", world.image, platform=platform).result
    assert (built["diff_id"], built["size"]) == (about["diff_id"], about["size"])
    assert sha256_file(Path(built["path"])) == about["diff_id"].removeprefix("sha256:")

    listed = world.nvllm("kernels", "list", world.image, platform=platform).result
    assert listed["diff_id"] == about["diff_id"]
    names = [[one["name"] for one in listed["kernels"] if one["target"] == target] for target in TARGETS]
    assert names[0] == names[1] != []
    assert len(listed["kernels"]) == len(names[0]) * len(TARGETS)

    proved = world.nvllm("kernels", "check", world.image, platform=platform).result
    assert (proved["platform"], proved["diff_id"]) == (platform, about["diff_id"])
    assert (proved["targets"], proved["kernels"]) == (TARGETS, listed["kernels"])
    assert proved["launches"] >= 200 * len({*names[0]}) * len(TARGETS)
    assert proved["stubs"]
    assert all(path.endswith(f".cpython-311-{MACHINES[platform]}-linux-gnu.so") for path in proved["stubs"])


@pytest.mark.long
def test_a_whole_image_has_the_bytes_that_were_built_without_a_base(cut: World, tmp_path: Path) -> None:
    project = Project(cut.project)
    build, stale = identity.load_build(project, IMAGE, None)
    assert not stale
    elsewhere = Places(tmp_path / "cache", tmp_path / "state")
    elsewhere.cache.mkdir()
    (elsewhere.cache / "store").symlink_to(cut.home / "cache/store")
    whole = ImageBuilder(project, elsewhere, Silent(), offline=False).image(build)
    above = [layer for layer in whole.layers if layer.kind not in {"base", "wheels", "identity"}]
    assert [{"kind": layer.kind, "diff_id": layer.diff_id, "size": layer.size} for layer in above] == cut.layers(
        "linux/amd64"
    )["layers"]
    assert above[-1].path.read_bytes() == cut.kernels("linux/amd64").read_bytes()
