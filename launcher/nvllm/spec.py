"""The image spec: what people write in ``images/<name>.yaml``, as frozen values.

Loading (YAML, schema, line numbers) is `specfile.py`; this module is the vocabulary that everything else
shares. Fields carry the spec's names with ``-`` written ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SCHEMA = "nvllm.image/1"


@dataclass(frozen=True, slots=True)
class DebianBase:
    """A root file system unpacked from Debian packages; the lock names each ``.deb`` by sha256."""

    kind: Literal["debian"]
    suite: str
    packages: tuple[str, ...]
    python: str
    """Minor version of the image's interpreter, such as ``3.11``, which is ``/usr/bin/python3.11``."""
    security: bool = False
    """Whether packages may come from the suite's security updates too, of which Debian keeps only the last."""


@dataclass(frozen=True, slots=True)
class RegistryBase:
    """An image of a registry, by digest: ``name@sha256:...``, of an index that has every platform of the spec."""

    kind: Literal["registry"]
    image: str
    python: str
    interpreter: str
    """Where that image has the interpreter of PYTHON, such as ``/usr/local/bin/python3.12``."""
    glibc: str
    """The version of its C library, such as ``2.36``: no wheel may want a newer one."""


@dataclass(frozen=True, slots=True)
class CommitSource:
    """A commit of a repository on a host of git repositories, for a vLLM that no package index has: it is compiled.

    TREE is the commit's tree as git names it, so that an archive of the commit proves itself, whoever made it.
    """

    kind: Literal["github"]
    repository: str
    tree: str


@dataclass(frozen=True, slots=True)
class VllmPin:
    """The commit that is served, and the distribution whose wheel must equal it.

    Without a SOURCE both source archive and wheel are those of VERSION on the package index.
    """

    version: str
    commit: str
    distribution: str
    differs: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    """Directories of files that the build of the wheel fetched: they are in it, and not in the source."""
    source: CommitSource | None = None


@dataclass(frozen=True, slots=True)
class Exclusion:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Alias:
    """A second metadata directory, so that DISTRIBUTION is also found under NAME."""

    name: str
    version: str
    distribution: str


@dataclass(frozen=True, slots=True)
class PythonSet:
    requirements: tuple[str, ...]
    exclude: tuple[Exclusion, ...] = ()
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Distribution name to index alias; what is not named comes from ``pypi``."""
    aliases: tuple[Alias, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchChoice:
    series: str
    enable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runtime:
    entrypoint: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DirectoryModel:
    """A local directory pinned by its tree hash; RECIPE names the command that can make it."""

    kind: Literal["directory"]
    tree: str
    recipe: str | None = None


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the hub: an exact REVISION (40 hex), or a branch to FOLLOW that the lock pins."""

    kind: Literal["huggingface"]
    repo: str
    revision: str | None = None
    follow: str | None = None


Model = DirectoryModel | HubModel


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """What a profile needs of the GPU: the compute capabilities it has code for, and a minimum driver."""

    capabilities: tuple[str, ...]
    driver: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the container. Sizes are bytes (the spec says ``6GiB``), timeouts are seconds."""

    memory: int
    shared_memory: int
    temporary: int
    pids: int
    start_timeout: int
    stall_timeout: int = 600
    """How long requests may run without anything moving, before the engine counts as stuck."""


@dataclass(frozen=True, slots=True)
class HostNeed:
    """What the host must have before a start. Bytes of MemAvailable."""

    memory_available: int


@dataclass(frozen=True, slots=True)
class Probe:
    """The one real generation that makes an engine ready."""

    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Waiver:
    """A named exception from a default, with the reason that is shown at every start."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class BlessRules:
    """What a blessing of a profile has to be, besides proved by its trials."""

    valid_days: int | None = None
    """Days after which it is served no more."""
    signers: str | None = None
    """An allowed signers file, one of whom has signed it: a path below the project, or an absolute one."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A named way to serve an image."""

    description: str
    model: str
    arguments: Mapping[str, bool | int | float | str]
    port: int
    limits: Limits
    host: HostNeed
    probe: Probe
    environment: Mapping[str, str] = field(default_factory=dict)
    sentinels: tuple[str, ...] = ()
    gpu: GpuNeed | None = None
    waivers: tuple[Waiver, ...] = ()
    dev: bool = False
    blessed: bool = False
    """Whether it is served from a blessed cache, and from nothing else."""
    bless: BlessRules = BlessRules()
    draft: str | None = None
    """The model that drafts what MODEL confirms or rejects, in speculative decoding; None where no model does."""

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that it needs, the served one first; each once."""
        names = (self.model,) if self.draft is None else (self.model, self.draft)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Lacking:
    """A library that holds no code for a target, and why nothing calls it there."""

    library: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The WHEELS whose libraries must hold code for every target, but for those that are listed as LACKING it."""

    wheels: tuple[str, ...]
    lacking: tuple[Lacking, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """One image spec, whole."""

    schema: str
    name: str
    description: str
    platforms: tuple[str, ...]
    """The platforms that the image is made for, each with a lock of its own."""
    epoch: int
    base: DebianBase | RegistryBase
    vllm: VllmPin
    python: PythonSet
    patches: PatchChoice
    runtime: Runtime
    models: Mapping[str, Model]
    profiles: Mapping[str, Profile]
    targets: tuple[str, ...] = ()
    """The CUDA architectures that the image must hold code for, such as ``sm_120a``; none on the CPU."""
    device_code: DeviceCode | None = None
    """Where that code is looked for; None without targets."""
