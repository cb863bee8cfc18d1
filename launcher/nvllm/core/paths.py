"""Paths: the files of a project, and the directories of nvllm's cache and state."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nvllm.core import reading
from nvllm.core.refusal import refuse

AMD64 = "linux/amd64"

_MACHINES = {"x86_64": AMD64, "AMD64": AMD64, "aarch64": "linux/arm64", "arm64": "linux/arm64"}
"""Python's names of the machines, on Linux and elsewhere."""

INSIDE = Path(__file__).parents[1] / "project"
"""Where an installed nvllm has its own project. A checkout does not have it; there the project is the checkout."""

_IMAGE = re.compile(r"[a-z0-9][a-z0-9-]{0,199}")
_ENTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class Project:
    """A tree with ``images/``, ``patches/`` and ``manifests/``: what people and `nvllm lock` write."""

    root: Path
    platform: str = AMD64
    """The platform whose locks are used."""
    own: bool = field(default=True, compare=False)
    """Whether nvllm may write into it. The project that nvllm came with is only read."""

    @property
    def identity(self) -> str:
        """What tells this project from others on this host: its real path.

        The project inside the package is one project wherever it is installed: an upgrade must not lose its bisects.
        """
        root = self.root.resolve()
        return "packaged" if root == INSIDE.resolve() else str(root)

    @property
    def id(self) -> str:
        """Sixteen digits of the sha256 of the identity: they name what this host keeps for this project alone."""
        # A path is bytes, which need not be UTF-8.
        return hashlib.sha256(os.fsencode(self.identity)).hexdigest()[:16]

    def writable(self, path: Path) -> Path:
        """Return PATH, a file of this project that is to be written. Raises Refused NV110 if nvllm came with it."""
        if self.own:
            return path
        expected = "a project of yours, here, above, or named with --project DIR: images/ and manifests/ in a directory"
        problem = f"no such project; nvllm only reads the one that it came with, {self.root}"
        raise refuse("NV110", str(path), expected, problem, "nvllm init mine && cd mine")

    def spec(self, image: str) -> Path:
        """Return the path of the spec of IMAGE. Raises Refused NV108 if that is no name of an image."""
        return self.root / "images" / f"{image_name(image)}.yaml"

    def lock(self, image: str) -> Path:
        """Return the path of the lock of IMAGE for this platform. Raises Refused NV108 if that is no name of one."""
        return self.root / "manifests" / lock_name(image_name(image), self.platform)

    def digests(self, image: str) -> Path:
        """Return the path of the recorded digests of IMAGE, for every platform."""
        return self.root / "manifests" / f"{image}.digests.json"

    def series(self, base: str) -> Path:
        """Return the directory of the series BASE. Raises Refused NV108 if that is no name of one."""
        return self.root / "patches" / _entry(base, "SERIES", "ls patches")

    @property
    def blessed(self) -> Path:
        """Bless manifests, their archive, signatures and revocations."""
        return self.root / "manifests" / "blessed"

    def signers(self, named: str | None) -> Path | None:
        """The path of the allowed signers file NAMED in a profile, if any."""
        return None if named is None else self.root / named

    def image_names(self) -> list[str]:
        """Return the names of the images that have a spec, in order. Raises OSError for an unreadable directory."""
        specs = reading.listed(self.root / "images", "*.yaml")
        return sorted(path.stem for path in specs if _IMAGE.fullmatch(path.stem))

    def show(self, path: Path) -> str:
        """Return PATH for messages: relative to the project if it is inside."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


class _Below:
    """A directory of `Places`: NAME below its field ROOT."""

    def __init__(self, root: Literal["cache", "state"], name: str) -> None:
        self._root = root
        self._name = name

    def __get__(self, places: Places, _: type[Places]) -> Path:
        return (places.cache if self._root == "cache" else places.state) / self._name


@dataclass(frozen=True, slots=True)
class Places:
    """The directories that nvllm owns. ``cache`` can be deleted and rebuilt; ``state`` cannot."""

    cache: Path
    state: Path

    store = _Below("cache", "store")
    """Locked files by sha256."""
    layers = _Below("cache", "layers")
    """Layers by the hash of their inputs."""
    models = _Below("cache", "models")
    """Models made by a command, by name."""
    code = _Below("cache", "device-code")
    """The device code found in wheels, by the sha256 of the wheel."""
    trees = _Below("cache", "trees")
    """Blessed caches by tree hash."""
    pins = _Below("state", "pins")
    """One file for each tree that a process needs before a manifest names it, see `cache/pins.py`."""
    builds = _Below("state", "builds")
    """One record per build hash: the ids of its image."""
    differing = _Below("state", "differing")
    """One directory per build hash: layers that are not as recorded, kept for looking."""
    locks = _Below("state", "locks")
    runs = _Below("state", "runs")
    """One directory per instance: its launch plan, sentinels, evidence."""
    blessing = _Below("state", "blessing")
    """One directory per instance: the evidence of its blesses, see `bless/evidence.py`."""
    staged = _Below("state", "staged")
    """One directory per instance: the private copies of caches that are mounted or being copied."""
    works = _Below("state", "work")
    """One directory per project, see `work`."""
    instances = _Below("state", "instances")
    """One link per name of an instance: to the project that it belongs to, see `serve/owners.py`."""
    kernels = _Below("state", "kernels")
    """The kernels that serves of blessed caches lacked, by serve hash, see `serve/kernel_reports.py`."""
    gates = _Below("state", "gates")
    """One record for each run of a hardware gate, see `host/gate_records.py`."""
    packaged_blessed = _Below("state", "packaged/blessed")
    """What `Project.blessed` is for a project of one's own: the blessings of the project that nvllm came with."""
    projects = _Below("state", "projects")
    """The projects that use this state, so that `gc` keeps what they refer to."""
    blessings = _Below("state", "blessings")
    """The newest versions of blessings that this host has seen."""
    resolutions = _Below("state", "resolutions")
    """How conflicts of ports were resolved, by what conflicted, see `port/resolutions.py`."""

    @property
    def id(self) -> str:
        """Sixteen digits of the sha256 of the state directory's real path: they tell the homes on one engine apart."""
        return hashlib.sha256(os.fsencode(self.state.resolve())).hexdigest()[:16]

    def run(self, instance: str) -> Path:
        """Return the run directory of INSTANCE. Raises Refused NV108 if that is no name of one."""
        return self.runs / _entry(instance, "INSTANCE", "nvllm status")

    def work(self, project: Project) -> Path:
        """What belongs to PROJECT alone: its bisects by image, and its pages."""
        return self.works / project.id

    def owner(self, instance: str) -> Path:
        """Return the link to the owner of INSTANCE. Raises Refused NV108 if that is no name of one."""
        return self.instances / _entry(instance, "INSTANCE", "nvllm status")


def places(env: Mapping[str, str]) -> Places:
    """Return the directories for ENV: below NVLLM_HOME if it is set, else below the XDG directories.

    A relative XDG directory counts as not set, as the XDG specification says; `relative_directories` names it.
    """
    home = Path(env.get("HOME") or "/")
    if env.get("NVLLM_HOME"):
        root = Path(env["NVLLM_HOME"]).absolute()
        return Places(root / "cache", root / "state")
    return Places(
        _absolute(env.get("XDG_CACHE_HOME"), home / ".cache") / "nvllm",
        _absolute(env.get("XDG_STATE_HOME"), home / ".local/state") / "nvllm",
    )


def signing_key(env: Mapping[str, str]) -> Path:
    """Return where the user of ENV has the key by which he signs blessings, if no other is named."""
    return _absolute(env.get("XDG_CONFIG_HOME"), Path(env.get("HOME") or "/") / ".config") / "nvllm/signing_key"


def relative_directories(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables of ENV that `places` ignores because they name a relative directory."""
    named = {"XDG_CACHE_HOME": env.get("XDG_CACHE_HOME"), "XDG_STATE_HOME": env.get("XDG_STATE_HOME")}
    if not env.get("NVLLM_HOME"):
        yield from (name for name, value in named.items() if value and not os.path.isabs(value))


def _absolute(named: str | None, default: Path) -> Path:
    return Path(named) if named and os.path.isabs(named) else default


def image_name(text: str) -> str:
    """Return TEXT, which becomes part of paths and of engine references. Raises Refused NV108 if it names no image."""
    return _name(text, _IMAGE, "IMAGE", "at most 200 lower-case letters, digits and -", "ls images")


def is_image_name(text: str) -> bool:
    """Return whether TEXT can name an image."""
    return _IMAGE.fullmatch(text) is not None


def _entry(text: str, where: str, cure: str) -> str:
    return _name(text, _ENTRY, where, "at most 200 letters, digits, `.`, `_` and -", cure)


def _name(text: str, pattern: re.Pattern[str], where: str, expected: str, cure: str) -> str:
    if not pattern.fullmatch(text):
        quoted = ascii(text if len(text) <= 80 else text[:77] + "...")
        raise refuse("NV108", where, expected, quoted, cure)
    return text


def lock_name(image: str, platform: str) -> str:
    """Return the file name of the lock of IMAGE for PLATFORM. That of linux/amd64 has no architecture in it."""
    architecture = "" if platform == AMD64 else "." + platform.partition("/")[2]
    return f"{image}{architecture}.lock.json"


def host_platform(machine: str) -> str:
    """Return the platform of a host with the processor MACHINE, linux/amd64 if it is unknown."""
    return _MACHINES.get(machine, AMD64)


def find_project(named: Path | None, start: Path, platform: str = AMD64) -> Project:
    """Return the project at NAMED, else the nearest one at or above START, else the one installed with nvllm.

    PLATFORM is the one whose locks are used. Raises Refused NV107 if NAMED holds no ``images`` directory, and for a
    directory with image specs but without ``manifests``: it would be skipped for a project that nobody means.
    """
    if named is not None:
        if (named / "images").is_dir():
            return _project_at(named.absolute(), platform)
        cure = "name the directory that holds images/, patches/ and manifests/"
        raise refuse("NV107", str(named), "a project: a directory that holds images/", "no images/ in it", cure)
    for directory in (start.absolute(), *start.absolute().parents):
        if (directory / "manifests").is_dir() and (directory / "images").is_dir():
            return _project_at(directory, platform)
        if _has_specs(directory / "images"):
            problem = "image specs in images/, but no manifests/"
            cure = shlex.join(["mkdir", str(directory / "manifests")])
            raise refuse("NV107", str(directory), "a project: images/ and manifests/", problem, cure)
    return packaged(platform)


def packaged(platform: str = AMD64) -> Project:
    """Return the project that nvllm came with: the one inside the package, else the checkout around it."""
    return Project(INSIDE if INSIDE.is_dir() else INSIDE.parents[2], platform, own=False)


def _project_at(root: Path, platform: str) -> Project:
    """Return the project at ROOT, which is no project of one's own if it is the one inside the package."""
    return Project(root, platform, own=root.resolve() != INSIDE.resolve())


def _has_specs(directory: Path) -> bool:
    """Return whether DIRECTORY holds image specs of nvllm's. Other directories are called images as well."""
    try:
        return any(
            b"nvllm.image/" in reading.content(path, reading.SPEC) for path in reading.listed(directory, "*.yaml")
        )
    except OSError:
        return False


def ensure(directory: Path) -> Path:
    """Create DIRECTORY for its owner alone, if it is not there, and return it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return directory
