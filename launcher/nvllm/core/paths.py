"""Where things lie: the project's files, the content store, and the state of running instances."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nvllm.core.refusal import Refusal, Refused

AMD64 = "linux/amd64"

_MACHINES = {"x86_64": AMD64, "AMD64": AMD64, "aarch64": "linux/arm64", "arm64": "linux/arm64"}
"""What Python calls the machines of the platforms, on Linux and elsewhere."""


@dataclass(frozen=True, slots=True)
class Project:
    """A tree with ``images/``, ``patches/`` and ``manifests/``: what people and `nvllm lock` write."""

    root: Path
    platform: str = AMD64
    """The platform whose locks are meant."""

    def spec(self, image: str) -> Path:
        return self.root / "images" / f"{image}.yaml"

    def lock(self, image: str) -> Path:
        """Return where the lock of IMAGE for this platform lies."""
        return self.root / "manifests" / lock_name(image, self.platform)

    def series(self, base: str) -> Path:
        return self.root / "patches" / base

    @property
    def blessed(self) -> Path:
        """Bless manifests, their archive, signatures and revocations."""
        return self.root / "manifests" / "blessed"

    def signers(self, named: str | None) -> Path | None:
        """The allowed signers file that a profile has NAMED, if it names one."""
        return None if named is None else self.root / named

    def image_names(self) -> list[str]:
        return sorted(path.stem for path in (self.root / "images").glob("*.yaml"))

    def show(self, path: Path) -> str:
        """Return PATH as messages name it: relative to the project where it lies inside."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


@dataclass(frozen=True, slots=True)
class Places:
    """The directories that nvllm owns. Everything in ``cache`` can be made again; ``state`` cannot."""

    cache: Path
    state: Path

    @property
    def store(self) -> Path:
        """Locked files by sha256."""
        return self.cache / "store"

    @property
    def layers(self) -> Path:
        """Layers by what they are made from."""
        return self.cache / "layers"

    @property
    def models(self) -> Path:
        """Models made by a command, by name."""
        return self.cache / "models"

    @property
    def code(self) -> Path:
        """What was found of device code in wheels, by their sha256."""
        return self.cache / "device-code"

    @property
    def trees(self) -> Path:
        """Blessed caches by tree hash."""
        return self.cache / "trees"

    @property
    def builds(self) -> Path:
        """One record per build hash: the image id that it came to."""
        return self.state / "builds"

    @property
    def locks(self) -> Path:
        return self.state / "locks"

    @property
    def runs(self) -> Path:
        """One directory per instance: its launch plan, sentinels, evidence."""
        return self.state / "runs"

    @property
    def blessing(self) -> Path:
        """One directory per instance: the evidence of its blesses, see `bless/evidence.py`."""
        return self.state / "blessing"

    @property
    def staged(self) -> Path:
        """One directory per instance: the private copies of caches that are mounted, or being made."""
        return self.state / "staged"

    @property
    def projects(self) -> Path:
        """The projects that have used this state, so that none loses what it refers to."""
        return self.state / "projects"

    @property
    def blessings(self) -> Path:
        """What this host remembers of the blessings that it has seen."""
        return self.state / "blessings"


def places(env: dict[str, str]) -> Places:
    """Return the places by ENV: NVLLM_HOME holds both, else the XDG directories do."""
    home = Path(env.get("HOME") or "/")
    if env.get("NVLLM_HOME"):
        root = Path(env["NVLLM_HOME"]).absolute()
        return Places(root / "cache", root / "state")
    return Places(
        Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "nvllm",
        Path(env.get("XDG_STATE_HOME") or home / ".local/state") / "nvllm",
    )


def lock_name(image: str, platform: str) -> str:
    """Return the name of the lock of IMAGE for PLATFORM. One without an architecture is that of linux/amd64."""
    architecture = "" if platform == AMD64 else "." + platform.partition("/")[2]
    return f"{image}{architecture}.lock.json"


def host_platform(machine: str) -> str:
    """Return the platform of a host that calls its processor MACHINE, linux/amd64 for one of no platform."""
    return _MACHINES.get(machine, AMD64)


def find_project(named: Path | None, start: Path, platform: str = AMD64) -> Project:
    """Return the project at NAMED, else the nearest one at or above START, else the one nvllm came with.

    PLATFORM is the one whose locks are meant. Raises Refused NV107 if NAMED holds no ``images`` directory.
    """
    if named is not None:
        if (named / "images").is_dir():
            return Project(named.absolute(), platform)
        raise Refused(
            [
                Refusal(
                    "NV107",
                    str(named),
                    "a project: a directory that holds images/",
                    "no images/ in it",
                    "name the directory that holds images/, patches/ and manifests/",
                )
            ]
        )
    for directory in (start.absolute(), *start.absolute().parents):
        if (directory / "images").is_dir() and (directory / "manifests").is_dir():
            return Project(directory, platform)
    return packaged(platform)


def packaged(platform: str = AMD64) -> Project:
    """Return the project that nvllm came with: the one inside the package, else the checkout around it."""
    here = Path(__file__).parents[1]
    inside = here / "project"
    return Project(inside if inside.is_dir() else here.parents[1], platform)


def ensure(directory: Path) -> Path:
    """Create DIRECTORY for its owner alone, if it is not there, and return it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return directory
