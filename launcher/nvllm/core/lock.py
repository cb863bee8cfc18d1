"""The lock: every byte that enters an image, by sha256. Written only by `nvllm lock`.

Each field is declared here and nowhere else. `lock/resolve.py` makes a lock, `lock/lockdoc.py` reads and writes the
file, and `lock/drift.py` compares two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from nvllm.core.fields import (
    NOT_EMPTY,
    WRITTEN,
    Commit,
    Count,
    Epoch,
    Form,
    PinnedCommit,
    Platform,
    Positive,
    Rule,
    Sha256,
)
from nvllm.core.paths import AMD64

SCHEMA = "nvllm.lock/1"

REPOSITORY = "github"
"""The index alias of the archive of a commit; see `sources/gitsource.py`."""

COMPILED = "compiled"
"""The index alias of a wheel that was compiled; no index has it."""

Text = Annotated[str, Rule(least=1, most=400)]
Sha256OrAbsent = Annotated[str, Rule("^([0-9a-f]{64}|absent)$", "a sha256 as 64 lower-case hex digits, or absent")]
RelativePath = Annotated[
    str, Rule(r"^(?!\.{1,2}(/|$))[^/\u0000]+(/(?!\.{1,2}(/|$))[^/\u0000]+)*$", "a relative path without . and ..")
]


def command(image: str, platform: str) -> str:
    """Return the command that makes the lock of IMAGE for PLATFORM."""
    return f"nvllm lock {image}" if platform == AMD64 else f"nvllm lock {image} --platform {platform}"


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One file to fetch. INDEX is an alias (``pypi``, ``pytorch-cpu``, ``debian``), never a host.

    For ``debian``, PATH is the pool path of the mirror; elsewhere it is the file's name.
    """

    path: RelativePath
    sha256: Sha256
    size: Count
    index: Annotated[str, Rule("^[a-z0-9]+(-[a-z0-9]+)*$", "the alias of an index, such as pypi")]

    @property
    def filename(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class LockedDeb:
    name: Text
    version: Text
    architecture: Annotated[str, Rule(choices=("all", "amd64", "arm64"))]
    file: LockedFile


@dataclass(frozen=True, slots=True)
class Offered:
    """A wheel as an index offers it now."""

    filename: str
    sha256: str
    url: str


@dataclass(frozen=True, slots=True)
class LockedWheel:
    name: Text
    version: Text
    file: LockedFile
    omitted: Annotated[tuple[Text, ...], NOT_EMPTY] = ()
    """Members that are left out of the image, and directories whose members are, in order."""

    def omits(self, path: str) -> bool:
        """Return whether the member PATH is left out of the image."""
        return any(f"{path}/".startswith(f"{omission}/") for omission in self.omitted)


@dataclass(frozen=True, slots=True)
class LockedDebianBase:
    kind: Literal["debian"]
    suite: Text
    python: Text
    packages: tuple[LockedDeb, ...]
    security: Annotated[bool, Rule(choices=(True,))] = False
    """Whether the suite's security updates were asked too."""
    snapshot: Annotated[
        str | None, Rule("^[0-9]{8}T[0-9]{6}Z$", "a time as snapshots are named, such as 20260101T000000Z")
    ] = None
    """A time at which Debian's archive had all PACKAGES, in the form of its snapshots' names. Older locks have none."""

    @property
    def interpreter(self) -> str:
        return f"/usr/bin/python{self.python}"


@dataclass(frozen=True, slots=True)
class LockedRegistryBase:
    kind: Literal["registry"]
    python: Text
    image: Annotated[str, Rule(r"^[^@\s]+@sha256:[0-9a-f]{64}$", "an image by digest, name@sha256:...")]
    interpreter: Text


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file in which the wheel is known to differ from the source: both hashes."""

    path: RelativePath
    source_sha256: Sha256OrAbsent
    wheel_sha256: Sha256OrAbsent


@dataclass(frozen=True, slots=True)
class LockedNative:
    """What compiles vLLM's extensions for DEVICE, besides the base and the wheels of the image."""

    device: Text
    tools: tuple[LockedWheel, ...]
    sources: Mapping[str, LockedFile]
    """Sources of other projects, by the variable of vLLM's CMake files."""

    @property
    def files(self) -> tuple[LockedFile, ...]:
        return (*(tool.file for tool in self.tools), *self.sources.values())


@dataclass(frozen=True, slots=True)
class LockedVllm:
    version: Text
    commit: PinnedCommit
    source: LockedFile
    distribution: Text
    differs: tuple[FileDifference, ...]
    arguments: Annotated[tuple[Text, ...], NOT_EMPTY] = ()
    """The long names of the arguments of ``vllm serve``, in order. Older locks have none."""
    native: LockedNative | None = None
    """What compiles patches of its native source; None if the spec does not say how that is done."""

    @property
    def native_files(self) -> tuple[LockedFile, ...]:
        """The files of `native`, none if it is None."""
        return () if self.native is None else self.native.files

    @property
    def compiled(self) -> bool:
        """Whether vLLM is compiled: SOURCE is a commit of a repository, and the lock has no wheel of it yet."""
        return self.source.index == REPOSITORY


@dataclass(frozen=True, slots=True)
class CodeFor:
    """How many modules of a library run on a target as machine code, by compiling PTX, and not at all."""

    cubin: Count
    ptx: Count
    none: Count


@dataclass(frozen=True, slots=True)
class LockedLibrary:
    """What `nvllm lock` found in one library with device code: the PATH in the wheel of the distribution WHEEL.

    ARCHITECTURES counts compilations (``cubin sm_120``); TARGETS counts modules by what they have for each target.
    """

    wheel: Text
    path: RelativePath
    architectures: Mapping[str, Positive]
    targets: Mapping[str, CodeFor]


@dataclass(frozen=True, slots=True)
class LockedPatch:
    id: Text
    status: Annotated[str, Rule(choices=("carried", "upstream", "rejected"))]
    """``carried``, ``upstream`` (already in the pinned source) or ``rejected`` (must not be applied)."""
    sha256: Sha256 | None


@dataclass(frozen=True, slots=True)
class LockedSeries:
    series: Text
    patches: tuple[LockedPatch, ...]


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: RelativePath
    size: Count
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class LockedModel:
    """A model's exact files. REVISION is 40 hex for the hub, None for a directory; TREE covers FILES."""

    kind: Literal["directory", "huggingface"]
    tree: Annotated[str, Rule("^sha256:[0-9a-f]{64}$", "a tree hash, sha256: and 64 hex digits")]
    files: tuple[ModelFile, ...]
    repo: Annotated[str | None, WRITTEN] = None
    follow: Annotated[str | None, WRITTEN] = None
    revision: Annotated[Commit | None, WRITTEN] = None


@dataclass(frozen=True, slots=True)
class Lock:
    """manifests/<image>.lock.json: every byte that enters an image, by sha256. Written only by `nvllm lock`."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    image: Text
    inputs: Sha256
    """The hash of the part of the image spec that decides the lock; see `spec/specfile.py`."""
    platform: Platform
    epoch: Epoch
    toolchain: Annotated[Mapping[str, Text], Rule(names=("layers", "python"))]
    """The version of the rules by which layers are made, and that of the image's interpreter."""
    base: LockedDebianBase | LockedRegistryBase
    vllm: LockedVllm
    wheels: tuple[LockedWheel, ...]
    aliases: tuple[tuple[Text, Text, Text], ...]
    """Name, version, and the distribution that is also found under that name."""
    series: LockedSeries
    models: Mapping[str, LockedModel]
    tools: Annotated[tuple[LockedWheel, ...], WRITTEN] = ()
    """The wheels that compile kernels on the host that builds, for every kind of host. They are not in the image."""
    device_code: Annotated[tuple[LockedLibrary, ...], WRITTEN] = ()
    """The libraries with device code in the wheels of `device-code`, in order of wheel and path; no omitted ones."""
    excluded: Annotated[tuple[LockedWheel, ...], NOT_EMPTY] = ()
    """The wheels that others ask for and that the spec leaves out. No build fetches them. Older locks have none."""
    templates: Annotated[tuple[ModelFile, ...], NOT_EMPTY] = ()
    """The chat templates of the profiles, by their paths below the project, in order."""

    @property
    def base_files(self) -> tuple[LockedFile, ...]:
        """The packages of the base; none if the base is an image of a registry."""
        return tuple(p.file for p in self.base.packages) if isinstance(self.base, LockedDebianBase) else ()

    @property
    def files(self) -> tuple[LockedFile, ...]:
        """Every file that a build may need, in the lock's order."""
        return (*self.base_files, self.vllm.source, *(wheel.file for wheel in self.wheels))

    @property
    def vllm_wheel(self) -> LockedWheel:
        """vLLM's own wheel. Raises StopIteration if it is not compiled yet."""
        return next(wheel for wheel in self.wheels if wheel.name == self.vllm.distribution)


FORM = Form("lock", SCHEMA, "Lock", Lock)
