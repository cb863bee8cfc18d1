"""Nix for the tests: a store of its own at /nix, in a mount namespace, and a stub in place of nixpkgs.

Nothing of the machine changes but an empty directory /nix, which is removed again if it was not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nvllm.core.lock import Lock, LockedDebianBase, LockedFile
from nvllm.core.paths import places
from nvllm.core.progress import Silent
from nvllm.lock import lockdoc
from nvllm.sources import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from nvllm.spec import specfile
from support.buildable import IMAGE, Buildable
from support.layersamples import PYTHON

ROOT = Path(__file__).parents[2]
STUB = ROOT / "tests/nix/stub"
INPUTS = ("flake.nix", "nix", "launcher", "images", "manifests", "patches", "Dockerfile", "README.md", "docs")
"""What a copy of the project holds."""

CONFIG = """\
experimental-features = nix-command flakes
build-users-group =
substituters =
flake-registry =
sandbox = true
sandbox-fallback = false
"""
_BIND = 'mount --bind "$0" /nix && exec "$@"'
_NAMESPACES = ("--mount", "--propagation", "private")
_LONGEST = 1800


def missing() -> list[str]:
    """Return what this machine lacks for these tests."""
    programs = [name for name in ("nix", "busybox", "git", "unshare", "ldd") if shutil.which(name) is None]
    return [*programs, *(["root"] if os.geteuid() else [])]


def lock(image: str = "cpu", root: Path = ROOT) -> Lock:
    """Return the lock of IMAGE."""
    path = root / f"manifests/{image}.lock.json"
    return lockdoc.read(path, str(path))


def user_store() -> Store:
    """Return the content store of the user who runs the tests."""
    return Store(places(dict(os.environ)).store)


def layer_files(image: Lock) -> list[Path]:
    """Return the stored files that the base and the patches of IMAGE are made from."""
    assert isinstance(image.base, LockedDebianBase)
    files = [*(one.file for one in image.base.packages), image.vllm.source, image.vllm_wheel.file]
    return [user_store().path(file.sha256) for file in files]


def fetched(image: Lock, files: Sequence[LockedFile]) -> list[Path]:
    """Return where FILES of the lock IMAGE are in the user's store, after fetching those that are not there."""
    fetch.fetch(files, user_store(), Sources.of(image, os.environ), Silent(), offline=False)
    return [user_store().path(file.sha256) for file in files]


def nvllm(*arguments: str | Path, project: Path = ROOT) -> dict[str, Any]:
    """Run nvllm without Nix, with the user's cache, and return its result."""
    argv = [sys.executable, "-m", "nvllm", "--project", project, "--json", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "launcher")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["result"]
    return found


@dataclass(frozen=True, slots=True)
class Ended:
    """What a program left: exit status, stdout, stderr."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class NixWorld:
    """A Nix store and a home below DIRECTORY."""

    directory: Path

    @property
    def stub(self) -> Path:
        return self.directory / "stub"

    @property
    def env(self) -> Mapping[str, str]:
        home = {"HOME": str(self.directory / "home"), "NIX_CONFIG": CONFIG, "PYTHONPATH": str(ROOT / "launcher")}
        return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **home}

    def run(self, *argv: str | Path, network: bool = True, cwd: Path | None = None) -> Ended:
        """Run ARGV in CWD, where /nix is this store; without NETWORK in a network namespace that has none."""
        namespaces = [*_NAMESPACES, *([] if network else ["--net"])]
        command = ["unshare", *namespaces, "sh", "-c", _BIND, str(self.directory / "nix"), *map(str, argv)]
        done = subprocess.run(
            command,
            env=dict(self.env),
            cwd=cwd or self.directory,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def flake(self, command: str, *arguments: str, network: bool = True, cwd: Path | None = None) -> Ended:
        """Run ``nix COMMAND`` with the stub for nixpkgs, in CWD."""
        given = ["--offline", "--no-write-lock-file", "--override-input", "nixpkgs", f"path:{self.stub}"]
        return self.run("nix", *command.split(), *given, *arguments, network=network, cwd=cwd)

    def build(self, installables: Sequence[str], *arguments: str, network: bool = True) -> dict[str, Path]:
        """Build INSTALLABLES and return where their outputs lie on this machine, by the names of the derivations."""
        done = self.flake("build", "--no-link", "--json", "-L", *installables, *arguments, network=network)
        assert done.code == 0, done.err
        places = [self.place(one["outputs"]["out"]) for one in json.loads(done.out)]
        return {place.name.partition("-")[2]: place for place in places}

    def place(self, path: str) -> Path:
        """Return where PATH of the Nix store lies on this machine."""
        return self.directory / path.lstrip("/")

    def add(self, files: Sequence[Path]) -> None:
        """Give FILES, named by their sha256, to the Nix store, as the message of a missing one says."""
        done = self.run("nix-store", "--add-fixed", "sha256", *files)
        assert done.code == 0, done.err

    def project(self, name: str) -> Path:
        """Return a new copy of the project, as git knows it."""
        place = self.directory / name
        listed = subprocess.run(["git", "ls-files", "-z", *INPUTS], cwd=ROOT, capture_output=True, check=True).stdout
        for file in filter(None, listed.decode().split("\0")):
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, place / file)
        return place


SMALL = (
    *("bash", "coreutils", "gcc-12-base", "libacl1", "libattr1", "libc6", "libexpat1", "libgcc-s1", "libpcre2-8-0"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "libselinux1", "libtinfo6", "python3.11-minimal", "zlib1g"),
)
"""The packages of Debian in a small base that runs."""


def small(root: Path, flake: str, stub: Path) -> Buildable:
    """Return a small image below ROOT that runs: real packages, a vLLM of a few lines, and the outputs of FLAKE.

    STUB is the one for nixpkgs. The packages must be in the user's store.
    """
    made, base = Buildable(root), lock().base
    assert isinstance(base, LockedDebianBase)
    packages = tuple(one for one in base.packages if one.name in SMALL)
    assert len(packages) == len(SMALL)
    store = Store(made.places.store)
    for package in packages:
        copy = Path(shutil.copy(user_store().path(package.file.sha256), root))
        store.adopt(copy, package.file.sha256)
    text = made.project.spec(IMAGE).read_text().replace(f'python: "{PYTHON}"', f'python: "{base.python}"')
    made.project.spec(IMAGE).write_text(text)
    inputs = specfile.inputs(specfile.load(made.project.spec(IMAGE), IMAGE), made.project.platform)
    lockdoc.write(made.project.lock(IMAGE), replace(made.lock, base=replace(base, packages=packages), inputs=inputs))
    (made.project.root / "flake.nix").write_text(
        f'{{ inputs.nixpkgs.url = "path:{stub}"; inputs.nvllm.url = "{flake}"; '
        'inputs.nvllm.inputs.nixpkgs.follows = "nixpkgs"; '
        "outputs = { self, nixpkgs, nvllm }: nvllm.lib.project ./.; }\n"
    )
    return made


@contextlib.contextmanager
def world(directory: Path) -> Iterator[NixWorld]:
    """Yield a world below DIRECTORY with the stub and its seed; its store is removed at the end."""
    made = NixWorld(directory)
    for name in ("nix", "home/.cache"):
        (directory / name).mkdir(parents=True)
    (directory / "home/.cache/nvllm").symlink_to(places(dict(os.environ)).cache)
    shutil.copytree(STUB, made.stub)
    subprocess.run([sys.executable, ROOT / "tests/nix/seed.py", directory / "seed", made.stub], check=True)
    before = Path("/nix").exists()
    Path("/nix").mkdir(exist_ok=True)
    try:
        added = made.run("nix-store", "--add-fixed", "--recursive", "sha256", directory / "seed")
        hashed = made.run("nix-hash", "--type", "sha256", "--base32", directory / "seed")
        assert (added.code, hashed.code) == (0, 0), added.err + hashed.err
        (made.stub / "seed.hash").write_text(hashed.out.strip())
        shutil.rmtree(directory / "seed")
        yield made
    finally:
        if not before:
            Path("/nix").rmdir()
        # The store is read-only, also for its owner; root does not care.
        shutil.rmtree(directory / "nix", ignore_errors=True)
