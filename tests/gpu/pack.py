"""Pack what a machine with a GPU needs that has neither Docker nor an index: `python -m gpu.pack DIR`.

The machine must have Python, torch and Triton in the versions of image sm120's lock; `--python` says which Python.
What it has besides is named by `--have`, a file with what `pip list --format=freeze` prints there. DIR gets pieces of
at most `--piece` bytes and `pieces.json`, which names them with their hashes; `python -m gpu.lay DIR PLACE`
lays them out there.

The trees are those of the locked wheels, without what no test loads. A wheel that is locked for another Python is
taken in the same version from the index that pip knows.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from benchmarks.gpu import sources
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from gpu.lay import MANIFEST
from nvllm.core.lock import Lock, LockedWheel
from nvllm.core.paths import find_project, places
from nvllm.core.progress import Silent
from nvllm.core.refusal import refuse_any
from nvllm.image import identity
from nvllm.patches import patching, patchset, seriesfile
from nvllm.patches.source import DirectoryTree
from nvllm.sources import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from nvllm.sources.wheels import Target, platform_tags

ROOT = Path(__file__).parents[2]
IMAGE = "sm120"
PIECE = 50_000_000

UNLOADED = (
    "vllm/vllm_flash_attn/_vllm_fa2_C*",  # compute capability 9.0 has version 3
    "vllm/_flashmla*",
    "vllm/third_party/deep_gemm/*",
    "*.a",
    "mistral_common/data/*",
    "pycountry/locales/*",
    "*/tests/*",
)
"""What no test loads of the wheels that are taken."""

UNUSED = frozenset(
    {
        "cuda-python",
        "cuda-tile",
        "flashinfer-python",
        "nvidia-cudnn-frontend",
        "nvidia-cutlass-dsl",
        "nvidia-cutlass-dsl-libs-base",
        "quack-kernels",
        "tilelang",
        "z3-solver",
    }
)
"""Distributions that vLLM asks for and imports only for back ends that no test chooses."""

VERSIONED = frozenset({"huggingface-hub", "tokenizers", "transformers"})
"""Distributions that are taken in the locked version although the machine has another one."""

TOOL = (
    "cattrs",
    "click",
    "docker",
    "filelock",
    "httpx2",
    "jsonschema",
    "packaging",
    "pyyaml",
    "rfc8785",
    "rich",
    "unearth",
)
"""What `nvllm` needs to bless and to serve."""

LIBRARIES = frozenset({"xgrammar"})
"""Distributions whose libraries hold symbols for a debugger, ten times as large as the code."""


def unloaded(path: str) -> bool:
    """Return whether no test loads the file of a wheel at PATH."""
    return any(fnmatch.fnmatch(path, pattern) for pattern in UNLOADED)


def needed(lock: Lock, have: Collection[str]) -> list[LockedWheel]:
    """Return the wheels of LOCK that a machine with the distributions HAVE still needs, but for vLLM itself."""
    there = {canonicalize_name(name) for name in have} - VERSIONED
    return [wheel for wheel in lock.wheels if wheel.name not in there | UNUSED | {lock.vllm.distribution}]


def distributions(text: str) -> set[str]:
    """Return the names in TEXT, which `pip list --format=freeze` printed."""
    return {line.partition("==")[0].strip() for line in text.splitlines() if line.strip()}


def loadable(filename: str, python: str) -> bool:
    """Return whether PYTHON (``3.12``) on x86-64 can load the wheel FILENAME."""
    version = tuple(map(int, python.split(".")))
    platforms = platform_tags(Target(python, "x86_64", 39))
    tags = {*cpython_tags(version, platforms=platforms), *compatible_tags(version, platforms=platforms)}
    return not tags.isdisjoint(parse_wheel_filename(filename)[3])


def files_of(wheels: Sequence[LockedWheel], python: str, store: Store, scratch: Path) -> Iterator[Path]:
    """Yield the files of WHEELS, which the store has; those that PYTHON cannot load are fetched in the same version."""
    unloadable = [wheel for wheel in wheels if not loadable(wheel.file.filename, python)]
    yield from (store.path(wheel.file.sha256) for wheel in wheels if wheel not in unloadable)
    if unloadable:
        platforms = [f"--platform={tag}" for tag in platform_tags(Target(python, "x86_64", 39))]
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        argv += [f"--python-version={python}", "--implementation=cp", *platforms, f"--dest={scratch}"]
        subprocess.run([*argv, *(f"{wheel.name}=={wheel.version}" for wheel in unloadable)], check=True)
        yield from sorted(scratch.glob("*.whl"))


def unpack(wheel: Path, target: Path, keep: Callable[[str], bool] = lambda _: True) -> None:
    """Unpack into TARGET those files of WHEEL that a test may load and that KEEP takes."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/") and not unloaded(name) and keep(name):
                archive.extract(name, target)


def lay_vllm(wheel: Path, target: Path) -> None:
    """Lay out vLLM's WHEEL as `TARGET/stock`, and as `TARGET/changed` the files that the whole series changes."""
    unpack(wheel, target / "stock")
    directory, label = ROOT / "patches/v0.21.0", "patches/v0.21.0"
    series = seriesfile.load(directory, label)
    carried = [patch.id for patch in series.patches if patch.status == "carried"]
    diffs = seriesfile.diffs(directory, patchset.choose(series, carried), label)
    for path, content in patching.apply_all(DirectoryTree(target / "stock"), list(diffs.values())).items():
        assert content is not None, path
        (target / "changed" / path).parent.mkdir(parents=True, exist_ok=True)
        (target / "changed" / path).write_bytes(content)


TAKEN = (
    "launcher",
    "tests",
    "benchmarks",
    "patches/v0.21.0",
    f"images/{IMAGE}.yaml",
    f"manifests/{IMAGE}.lock.json",
    f"manifests/{IMAGE}.digests.json",
)
"""Of this repository."""


def lay_repository(target: Path) -> None:
    """Lay out what the tests of a GPU run of this repository: the tracked and the new files that are no documents."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *TAKEN]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def archive(source: Path, target: Path) -> None:
    """Write what is in SOURCE as TARGET, a tar file in xz."""
    with tarfile.open(target, "w:xz") as tar:
        for path in sorted(source.iterdir()):
            tar.add(path, path.name)


def split(whole: Path, size: int) -> list[dict[str, object]]:
    """Cut the file WHOLE into pieces of at most SIZE bytes beside it, and return what `pieces.json` says of each."""
    pieces: list[dict[str, object]] = []
    with whole.open("rb") as stream:
        while data := stream.read(size):
            name = f"{whole.name}.{len(pieces):02}"
            whole.with_name(name).write_bytes(data)
            pieces.append({"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    whole.unlink()
    return pieces


def strip(directory: Path) -> None:
    """Take the symbols for a debugger out of the libraries below DIRECTORY."""
    for library in directory.rglob("*.so"):
        subprocess.run(["strip", "--strip-unneeded", library], check=True)


def lay_code(target: Path, python: str) -> None:
    """Lay out in TARGET what is of this repository, the kernels layer for PYTHON, and what benchmarks need."""
    lay_repository(target / "repository")
    lay_kernels = ["benchmarks.gpu.first_fire", "lay", "--python", python, str(target / "kernels")]
    subprocess.run([sys.executable, "-m", *lay_kernels], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        sources.lay(Path(scratch))
        (target / "trees").mkdir()
        for name in ("upstream_zeroer.py", "sources.json"):
            shutil.copy(Path(scratch, name), target / "trees")


def lay_site(target: Path, wheels: Sequence[LockedWheel], python: str, store: Store) -> None:
    """Lay out WHEELS in `TARGET/site`."""
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        for wheel in files_of(wheels, python, store, Path(scratch)):
            unpack(wheel, target / "site")
    for name in LIBRARIES:
        strip(target / "site" / name)


def lay_tool(target: Path, python: str) -> None:
    """Lay out in `TARGET/tool` what `nvllm` needs on PYTHON, in the versions that its developers have."""
    pinned = [line.split(" ")[0] for line in (ROOT / "requirements-dev.txt").read_text().splitlines()]
    constraints = target / "constraints.txt"
    constraints.write_text("\n".join(line for line in pinned if "==" in line), encoding="utf-8")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", f"--python-version={python}"]
    argv += [f"--platform={tag}" for tag in platform_tags(Target(python, "x86_64", 39))]
    subprocess.run([*argv, f"--target={target / 'tool'}", f"--constraint={constraints}", *TOOL], check=True)
    constraints.unlink()


_UNUSED_BY_ENGINES = (
    "*.a",
    "./usr/bin/containerd-stress",
    "./usr/bin/ctr",
    "./usr/bin/docker-compose",
    "./usr/bin/podman-remote",
    "./usr/lib/systemd",
    "./usr/lib/x86_64-linux-gnu/gconv",
    "./usr/lib/x86_64-linux-gnu/perl*",
    "./usr/libexec/docker/cli-plugins",
    "./usr/libexec/podman/podman-testing",
    "./usr/share/doc",
    "./usr/share/locale",
    "./usr/share/man",
    "./usr/share/perl*",
)


def lay_engines(target: Path) -> None:
    """Lay out in `TARGET/engines` Docker and Podman as Debian's packages have them, without what no container needs."""
    from support import private_engines  # it needs what the tests need

    (target / "engines").mkdir()
    source = private_engines.distribution("trixie")
    excluded = [f"--exclude={pattern}" for pattern in _UNUSED_BY_ENGINES]
    with subprocess.Popen(["tar", "-C", source, *excluded, "-cf", "-", "."], stdout=subprocess.PIPE) as whole:
        subprocess.run(["tar", "-C", target / "engines", "-xf", "-"], stdin=whole.stdout, check=True)
    assert whole.returncode == 0, source


def lay_registry(target: Path) -> None:
    """Lay out in `TARGET/registry` a registry, Debian's docker-registry, as apt downloads and checks it."""
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        subprocess.run(["apt-get", "--quiet", "download", "docker-registry"], cwd=scratch, check=True)
        (package,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, target / "registry"], check=True)


ARCHIVES = ("code", "engines", "registry", "site", "tool", "vllm")


def pack(directory: Path, python: str, have: Collection[str], size: int, archives: Collection[str]) -> None:
    """Write the pieces of ARCHIVES, of at most SIZE bytes, for a machine with PYTHON and the distributions HAVE.

    They are in DIRECTORY then.

    :raises nvllm.core.refusal.Refused: when a locked file cannot be had, or a patch does not apply.
    """
    project, own = find_project(None, Path(__file__).parent), places(dict(os.environ))
    made, stale = identity.load_build(project, IMAGE, None)
    refuse_any(stale)
    store, wheels = Store(own.store), needed(made.lock, have)
    vllm = next(wheel.file for wheel in made.lock.wheels if wheel.name == made.lock.vllm.distribution)
    locked = [wheel.file for wheel in wheels if loadable(wheel.file.filename, python)]
    fetch.fetch([vllm, *locked], store, Sources(None, os.environ), Silent(), offline=False)
    directory.mkdir(parents=True, exist_ok=True)
    manifest = directory / MANIFEST
    pieces = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {}
    lay: dict[str, Callable[[Path], None]] = {
        "code": lambda top: lay_code(top, python),
        "engines": lay_engines,
        "registry": lay_registry,
        "site": lambda top: lay_site(top, wheels, python, store),
        "tool": lambda top: lay_tool(top, python),
        "vllm": lambda top: lay_vllm(store.path(vllm.sha256), top / "trees"),
    }
    for name in archives:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            lay[name](Path(scratch))
            whole = directory / f"{name}.tar.xz"
            archive(Path(scratch), whole)
        pieces[whole.name] = split(whole, size)
    manifest.write_text(json.dumps(pieces, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m gpu.pack", description=__doc__.split("\n\n")[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--python", default="3.12", help="of the machine (default 3.12)")
    parser.add_argument("--have", type=Path, help="what `pip list --format=freeze` prints there")
    parser.add_argument("--piece", type=int, default=PIECE, help=f"most bytes of a piece (default {PIECE})")
    parser.add_argument("--only", nargs="+", choices=ARCHIVES, default=ARCHIVES, help="what to pack anew")
    asked = parser.parse_args(argv)
    have = distributions(asked.have.read_text(encoding="utf-8")) if asked.have else {"torch", "triton"}
    pack(asked.directory.resolve(), asked.python, have, asked.piece, asked.only)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
