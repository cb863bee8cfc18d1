"""The launch plan: one container about to start, fully resolved, frozen, printable as JSON.

`serve/planner.py` makes a plan, `host/checks.py` checks it, and `engine/containers.py` starts the container that it
describes and adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import cattrs

from nvllm.core.canonical import Json
from nvllm.core.spec import LOOPBACK, Access, GpuNeed, HostNeed, Missing, Probe, ResourceLimits, Waiver

SCHEMA = "nvllm.plan/1"

RUN_DIRECTORY = "/run/nvllm"
"""Inside the container: sentinels and the gate's expectations, read-only."""

CONTAINER_PORT = 8000
"""Where vLLM listens inside the container; the profile's port is published on the addresses of the plan."""

EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - the name of an address that a profile may ask for

ACCESS = "/access"
"""Inside the container: the program that asks for the API key, read-only, if the profile names a key file."""

ACCESS_PROGRAM = "nvllm_access.py"
ACCESS_ARGUMENTS = ("--middleware", "nvllm_access.ApiKey")
ACCESS_ENVIRONMENT: Mapping[str, str] = {"PYTHONPATH": ACCESS}
"""What lets vLLM find that program. The key is in none of it: the program reads it from its file."""

KEY_FILE = "/run/secrets/nvllm-api-key"
"""Inside the container: the API key, read-only."""

TEMPLATES = "/templates"
"""Inside the container: the chat template of the profile, if it has one of its own, read-only."""

HOME = "/home/nvllm"

# Names are resolved at lock time: the engine asks no hub, sends nothing home, and holds no token.
ENGINE_ENVIRONMENT: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "HOME": HOME,
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "nvllm",
    "TMPDIR": "/tmp",  # noqa: S108 - inside the container, a tmpfs of its own
    "TRANSFORMERS_OFFLINE": "1",
    "USER": "nvllm",  # the operator's uid has no name in the image, and getpass wants one
    "VLLM_CACHE_ROOT": f"{HOME}/.cache/vllm",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables that nvllm sets in every container. A spec that sets one of them is refused (NV101)."""


CACHE = ENGINE_ENVIRONMENT["VLLM_CACHE_ROOT"]
"""Inside the container: where the engine looks for compiled code."""

SEEDS = "/blessed"
"""Inside the container: the blessed cache a second time, read-only: from here the directories are filled that the
engine also writes into."""

FORCE_LOAD = "VLLM_FORCE_AOT_LOAD"

BLESSED_ENVIRONMENT: Mapping[str, str] = {"VLLM_USE_AOT_COMPILE": "1", FORCE_LOAD: "1"}
"""Variables that nvllm also sets for a blessed profile. A bootstrap has no code to load and leaves out `FORCE_LOAD`."""

UNCACHED = frozenset({"VLLM_DISABLE_COMPILE_CACHE"})
"""Variables that switch the compile cache off. A blessed profile may not set them."""

DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""A variable that opens further routes of vLLM's server: whoever may ask can call any method of the workers, load other
weights, and put the engine to sleep. Only a profile with `dev: true` may set it."""

KV_CACHE_SIZES = frozenset({"kv-cache-memory-bytes", "num-gpu-blocks-override"})
"""Arguments that decide the number of blocks. A blessed profile for a GPU has one of them: vLLM's kernel
``_causal_conv1d_update_kernel`` is compiled for that number, and what vLLM measures differs from start to start."""


_GATE_WORDS = 3
"""Words of the gate's command: the interpreter, its option, the program."""


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """The command of a container: the GATE, which is its first process, and the ENGINE, which the gate then runs.

    Outside of the launcher it is one list of words.
    """

    gate: tuple[str, ...]
    engine: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.gate, *self.engine)

    @property
    def interpreter(self) -> str:
        """The path of the image's own Python."""
        return self.gate[0]


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount. It has no mode: every bind mount of a launch plan is read-only."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Scratch:
    """A tmpfs of SIZE bytes at TARGET, writable by the container's user only."""

    target: str
    size: int


@dataclass(frozen=True, slots=True)
class PlannedCache:
    """The blessed cache that the container gets at TARGET: the tree with the hash TREE, read-only like every mount.

    SEEDS are paths in it: directories that the engine also writes into. It gets a scratch there with a copy of their
    files, made by `runtime/seed.py` from the mount at `SEEDS`. MISSING is what happens to a kernel that is not in it.
    """

    tree: str
    target: str
    seeds: tuple[str, ...] = ()
    missing: Missing = "report"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the engine sees it: PATH inside the container, and what the lock says it must be."""

    name: str
    path: str
    tree: str
    revision: str | None


@dataclass(frozen=True, slots=True)
class PlannedTemplate:
    """The chat template FILE of the project, with what the lock says it must be. The engine reads it at PATH."""

    file: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """A GPU that the container gets: its name, and what decides which code runs on it."""

    uuid: str
    name: str
    capability: str
    driver: str


@dataclass(frozen=True, slots=True)
class CpuLayout:
    """What decides the threads of an engine on the CPU: processors online, physical cores, NUMA nodes."""

    count: int
    cores: int
    nodes: int


@dataclass(frozen=True, slots=True)
class PlannedCpu:
    """What decides the code that is compiled for the host's processors; see host/facts.py. LAYOUT: None with GPUs."""

    machine: str
    kind: str
    flags: tuple[str, ...]
    layout: CpuLayout | None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One container. Sizes in bytes, times in seconds, PORT is published on ADDRESSES only."""

    schema: str
    instance: str
    """The container's name, ``nvllm-<image>-<profile>``."""
    image: str
    image_id: str
    build_hash: str
    profile: str
    dev: bool
    serve_hash: str
    command: PlannedCommand
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    scratch: tuple[Scratch, ...]
    user: str
    """``uid:gid``, never 0."""
    port: int
    limits: ResourceLimits
    host: HostNeed
    gpu: GpuNeed | None
    gpus: tuple[PlannedGpu, ...]
    cpu: PlannedCpu
    model: ServedModel
    draft: ServedModel | None
    """The model that drafts, in speculative decoding."""
    sentinels: tuple[str, ...]
    waivers: tuple[Waiver, ...]
    probe: Probe
    cache: PlannedCache | None = None
    manifest_id: str = ""
    """What an engine with a containerd image store calls the image; empty where it is not known."""
    adapters: tuple[ServedModel, ...] = ()
    """The LoRA adapters of the served model. Requests name them."""
    template: PlannedTemplate | None = None
    """The chat template in the place of the model's own."""
    served_name: str = ""
    """What requests call the model; empty for its name in the spec."""
    access: Access = field(default_factory=Access)
    """Who may ask. The path of the key's file is here, and the key is not."""

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The served model, the one that drafts, and the adapters."""
        return (self.model, *(() if self.draft is None else (self.draft,)), *self.adapters)

    @property
    def request_name(self) -> str:
        """What requests call the model."""
        return self.served_name or self.model.name

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of this host on which the port is published: the loopback is always reached."""
        chosen = self.access.publish
        return (chosen,) if chosen in {LOOPBACK, EVERY_ADDRESS} else (LOOPBACK, chosen)

    @property
    def image_ids(self) -> tuple[str, ...]:
        """The ids by which an engine may know the image. It knows it by one of them."""
        return tuple(id_ for id_ in (self.image_id, self.manifest_id) if id_)


@dataclass(frozen=True, slots=True)
class Workbench:
    """A container that compiles: PLAN, and DIRECTORY of this host writable at `CACHE`.

    Nothing else has a writable mount. It is not a launch plan, so code that serves cannot be given one.
    """

    plan: LaunchPlan
    directory: str


def decode(document: Json) -> LaunchPlan:
    """Return the plan in DOCUMENT, the JSON of `encode`. Raises ValueError if there is none in it."""
    if not isinstance(document, dict):
        raise ValueError("a launch plan is a mapping")  # noqa: TRY004 - what is wrong is a file, not the caller
    try:
        return _converter().structure(document, LaunchPlan)
    except cattrs.BaseValidationError as error:
        raise ValueError("; ".join(cattrs.transform_error(error))) from error


def encode(plan: LaunchPlan) -> dict[str, Json]:
    """Return PLAN as JSON."""
    return cast("dict[str, Json]", _converter().unstructure(plan))


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_unstructure_hook(PlannedCommand, lambda command: list(command.words))
    converter.register_structure_hook(PlannedCommand, _command)
    return converter


def _command(words: object, _: type[PlannedCommand]) -> PlannedCommand:
    if not isinstance(words, list):
        raise ValueError("a command is a list of words")  # noqa: TRY004 - what is wrong is a file, not the caller
    texts = tuple(str(word) for word in words)
    return PlannedCommand(texts[:_GATE_WORDS], texts[_GATE_WORDS:])


def ulimits(plan: LaunchPlan) -> Mapping[str, int]:
    """Return the limits of each process in the container of PLAN, by the names of ulimits; hard and soft are the same.

    Others stay as the engine has them: an engine without CAP_SYS_RESOURCE can raise none, and fails at the start. The
    driver pins memory for CUDA itself, whatever `memlock` is; how many processes there are, the cgroup limits.
    """
    return {"core": 0, "nofile": plan.limits.open_files}
