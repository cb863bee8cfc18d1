"""The lock: every byte that enters an image, by sha256. Written only by `nvllm lock`.

This module is the vocabulary and the file format; what resolves the names is `resolve.py`, and what tells
two locks apart is `drift.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SCHEMA = "nvllm.lock/1"

AMD64 = "linux/amd64"

REPOSITORY = "github"
"""The index alias of the archive of a commit; see `gitsource.py`."""

COMPILED = "compiled"
"""The index alias of a wheel that was compiled, and that nobody offers."""


def filename(image: str, platform: str) -> str:
    """Return the name of the lock of IMAGE for PLATFORM. One without an architecture is that of linux/amd64."""
    architecture = "" if platform == AMD64 else "." + platform.partition("/")[2]
    return f"{image}{architecture}.lock.json"


def command(image: str, platform: str) -> str:
    """Return the command that makes the lock of IMAGE for PLATFORM, for a cure."""
    return f"nvllm lock {image}" if platform == AMD64 else f"nvllm lock {image} --platform {platform}"


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One file to fetch. INDEX is an alias (``pypi``, ``pytorch-cpu``, ``debian``), never a host.

    For ``debian``, PATH is the pool path of the mirror; elsewhere it is the file's name.
    """

    path: str
    sha256: str
    size: int
    index: str

    @property
    def filename(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class LockedDeb:
    name: str
    version: str
    architecture: str
    file: LockedFile


@dataclass(frozen=True, slots=True)
class LockedWheel:
    name: str
    version: str
    file: LockedFile


@dataclass(frozen=True, slots=True)
class LockedDebianBase:
    kind: Literal["debian"]
    suite: str
    python: str
    packages: tuple[LockedDeb, ...]
    security: bool = False
    """Whether the suite's security updates were asked too."""
    snapshot: str | None = None
    """A time at which Debian's archive had all PACKAGES, as its snapshots are named; older locks do not say it."""

    @property
    def interpreter(self) -> str:
        return f"/usr/bin/python{self.python}"


@dataclass(frozen=True, slots=True)
class LockedRegistryBase:
    kind: Literal["registry"]
    python: str
    image: str
    interpreter: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A file in which the wheel is known to differ from the source: both hashes."""

    path: str
    source_sha256: str
    wheel_sha256: str


@dataclass(frozen=True, slots=True)
class LockedVllm:
    version: str
    commit: str
    source: LockedFile
    distribution: str
    differs: tuple[Difference, ...]

    @property
    def compiled(self) -> bool:
        """Whether it is a commit of a repository, so that its wheel has to be compiled before it can be locked."""
        return self.source.index == REPOSITORY


@dataclass(frozen=True, slots=True)
class CodeFor:
    """How the modules of a library come to run on one target: as machine code, compiled from PTX, or not at all."""

    cubin: int
    ptx: int
    none: int


@dataclass(frozen=True, slots=True)
class LockedLibrary:
    """What `nvllm lock` found in one library with device code: the PATH in the wheel of the distribution WHEEL.

    ARCHITECTURES counts compilations (``cubin sm_120``), TARGETS the modules by what they hold for each target.
    """

    wheel: str
    path: str
    architectures: Mapping[str, int]
    targets: Mapping[str, CodeFor]


@dataclass(frozen=True, slots=True)
class LockedPatch:
    id: str
    status: str
    """``carried``, ``upstream`` (already in the pinned source) or ``rejected`` (must not be applied)."""
    sha256: str | None


@dataclass(frozen=True, slots=True)
class LockedSeries:
    series: str
    patches: tuple[LockedPatch, ...]


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class LockedModel:
    """A model's exact files. REVISION is 40 hex for the hub, None for a directory; TREE covers FILES."""

    kind: Literal["directory", "huggingface"]
    tree: str
    files: tuple[ModelFile, ...]
    repo: str | None = None
    follow: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock, whole. INPUTS is the hash of the spec's lock-relevant part (see `specfile.inputs`)."""

    schema: str
    image: str
    inputs: str
    platform: str
    epoch: int
    toolchain: Mapping[str, str]
    base: LockedDebianBase | LockedRegistryBase
    vllm: LockedVllm
    wheels: tuple[LockedWheel, ...]
    aliases: tuple[tuple[str, str, str], ...]
    series: LockedSeries
    models: Mapping[str, LockedModel]
    tools: tuple[LockedWheel, ...] = ()
    """What compiles kernels on the host that builds, for any such host; nothing of it enters the image."""
    device_code: tuple[LockedLibrary, ...] = ()
    """The libraries with device code in the wheels that are looked into, by wheel and path."""

    @property
    def files(self) -> tuple[LockedFile, ...]:
        """Every file that a build may need, in the lock's order."""
        debs = tuple(p.file for p in self.base.packages) if isinstance(self.base, LockedDebianBase) else ()
        return (*debs, self.vllm.source, *(wheel.file for wheel in self.wheels))

    @property
    def vllm_wheel(self) -> LockedWheel:
        """vLLM's own wheel, of a lock that has one: what is still to be compiled has none."""
        return next(wheel for wheel in self.wheels if wheel.name == self.vllm.distribution)
