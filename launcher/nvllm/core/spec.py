"""The image spec: what people write in ``images/<name>.yaml``, as frozen values.

Each field is declared here and nowhere else: its type, the rules on it (see `fields.py`) and what it means. Fields
carry the spec's names with ``-`` written ``_``. `spec/specfile.py` loads a spec and checks what needs more than one
field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from nvllm.core.evaluation import Evaluation
from nvllm.core.extensions import NativeBuild
from nvllm.core.fields import (
    COMMIT,
    DISTRIBUTION,
    NOT_EMPTY,
    PINNED,
    PINNED_COMMIT,
    VERSION,
    Epoch,
    Form,
    Platform,
    ProjectPath,
    Requirement,
    Rule,
    Size,
    Text,
)
from nvllm.core.gaterules import GateRules

SCHEMA = "nvllm.image/1"

_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*"

Name = Annotated[str, Rule("^[a-z0-9][a-z0-9-]*$", "a name of lower-case letters, digits and -, not starting with -")]
ProfileName = Annotated[
    str,
    Rule("^[a-z0-9][A-Za-z0-9-]*$", "a name of letters, digits and -, starting with a lower-case letter or a digit"),
]
Version = Annotated[str, Rule(f"^{VERSION}", "an exact version, such as 0.28.0 or 2.13.0+cpu")]
Distribution = Annotated[
    str, Rule(f"{DISTRIBUTION}$", "a distribution name: letters, digits, ., _ and -, a letter or digit at both ends")
]
WheelPath = Annotated[
    str,
    Rule(
        "^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*$",
        "a path inside the wheel, such as vllm/_version.py",
    ),
]
PythonMinor = Annotated[str, Rule(r"^3\.[0-9]{1,2}$", 'a minor version of Python in quotes, such as "3.11"')]
Environment = Mapping[
    Annotated[str, Rule("^[A-Z_][A-Z0-9_]*$", "a name of capital letters, digits and _, not starting with a digit")],
    Annotated[str, Rule(r"^[^\u0000]*$", "text without NUL")],
]
ArgumentName = Annotated[
    str,
    Rule(
        r"^[a-z0-9][a-z0-9-]*(\.[A-Za-z0-9_-]+)*$",
        "the long name of an argument of vllm serve without the leading --, written with -",
    ),
]
Argument = Annotated[
    bool | int | float | str,
    Rule(
        r"^(?!-)[^\u0000]+$",
        "true, false, a number of at most 53 bits, or text that is not empty and does not start with -",
        minimum=1 - 2**53,
        maximum=2**53 - 1,
    ),
]
Capability = Annotated[str, Rule(r"^[1-9][0-9]?\.[0-9]$", 'a compute capability in quotes, such as "12.0"')]
CommandWord = Annotated[
    str,
    Rule(
        r"^(?!--)[^\u0000]+$",
        "a word of the command that starts the engine, without options: a profile has those",
        cure="move it into the `arguments:` of the profiles, where it is checked",
    ),
]
HostPath = Annotated[
    str,
    Rule(
        r"^(/(?!\.{1,2}(/|$))[^/\u0000]+)+$",
        "an absolute path of this host, without `.`, `..` and doubled slashes, such as /srv/mine",
    ),
]
ServedName = Annotated[
    str,
    Rule(
        "^[A-Za-z0-9_][A-Za-z0-9_./:-]*$",
        "a name of letters, digits, ., _, /, : and -, starting with a letter, a digit or _",
        most=200,
    ),
]
LOOPBACK = "127.0.0.1"
"""The address that reaches this host alone."""
Address = Annotated[
    str,
    Rule(
        r"^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(?!$)|$)){4}$",
        "an IPv4 address of this host, such as 192.0.2.7, or 0.0.0.0 for all of them",
    ),
]
DebianPackage = Annotated[str, Rule("^[a-z0-9][a-z0-9+.-]+$", "the name of a Debian package")]
Index = Annotated[str, Rule(choices=("pypi", "pytorch-cpu", "pytorch-cuda"))]
Sentinel = Annotated[str, Rule(f"{_NAME}$", "a file name of letters, digits, ., _ and -")]
Target = Annotated[str, Rule("^sm_[1-9][0-9]{1,2}[af]?$", "a CUDA architecture, such as sm_120a")]


@dataclass(frozen=True, slots=True)
class DebianBase:
    """A root file system unpacked from Debian packages; the lock names each ``.deb`` by sha256."""

    kind: Literal["debian"]
    """The image begins with Debian packages that nvllm unpacks."""
    suite: Annotated[str, Rule("^[a-z][a-z0-9-]*$", "the code name of a Debian suite, such as bookworm")]
    """The release of Debian that the packages are of."""
    packages: Annotated[tuple[DebianPackage, ...], NOT_EMPTY]
    """The packages that are asked for. `nvllm lock` adds what they depend on."""
    python: PythonMinor
    """Minor version of the image's interpreter, such as ``3.11``, which is ``/usr/bin/python3.11``."""
    security: bool = False
    """Whether packages may also come from the suite's security updates. Debian keeps only the last update of a package:
    a lock can be built until the next one comes, or for ever with a snapshot archive."""


@dataclass(frozen=True, slots=True)
class RegistryBase:
    """An image of a registry, by digest: ``name@sha256:...``, of an index that has every platform of the spec."""

    kind: Literal["registry"]
    """The image begins with the layers of an image of a registry."""
    image: Annotated[
        str,
        Rule(
            "^[a-z0-9][a-z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*"
            "(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?@sha256:[0-9a-f]{64}$",
            "an image by digest, name@sha256: and 64 lower-case hex digits",
            code="NV102",
            cure="write NAME@DIGEST with the digest that `docker buildx imagetools inspect {value}` prints",
        ),
    ]
    """The image with which this one begins, by the digest of its index."""
    python: PythonMinor
    """Minor version of that image's interpreter."""
    interpreter: Annotated[
        str, Rule("^(/[A-Za-z0-9._+-]+)+$", "where the image has its interpreter, such as /usr/local/bin/python3.12")
    ]
    """Where that image has the interpreter of PYTHON, such as ``/usr/local/bin/python3.12``."""
    glibc: Annotated[str, Rule(r"^2\.[1-9][0-9]$", 'the version of the image\'s C library in quotes, such as "2.36"')]
    """The version of its C library, such as ``2.36``. No wheel may need a newer one."""


@dataclass(frozen=True, slots=True)
class CommitSource:
    """A commit of a repository on a host of git repositories, for a vLLM that no package index has: it is compiled.

    TREE is git's id of the commit's tree: an archive of the commit is checked against it, wherever it comes from.
    """

    kind: Literal["github"]
    """The kind of host: one that serves ``owner/name/archive/COMMIT.tar.gz``."""
    repository: Annotated[
        str, Rule("^[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9_][A-Za-z0-9._-]*$", "a repository, owner/name")
    ]
    """The repository of the commit."""
    tree: Annotated[
        str,
        Rule(
            COMMIT,
            "the commit's tree as 40 lower-case hex digits",
            code="NV102",
            cure="write the 40 hex digits that `git rev-parse COMMIT^{tree}` prints in a clone",
        ),
    ]
    """Git's id of the commit's tree, with which the files of the archive are compared."""


@dataclass(frozen=True, slots=True)
class VllmPin:
    """The commit that is served, and the distribution whose wheel must equal it.

    Without a SOURCE, the package index has both the source archive and the wheel of VERSION.
    """

    version: Version
    """The version of the wheel."""
    commit: Annotated[
        str,
        Rule(
            PINNED_COMMIT,
            PINNED,
            code="NV102",
            cure="write the 40 hex digits that `git rev-parse {value}^0` prints in a clone of vLLM "
            "(without one: `git ls-remote https://github.com/vllm-project/vllm {value}`)",
        ),
    ]
    """The commit of vLLM that the wheel was made from, and that the patches are for."""
    distribution: Distribution
    """The name of the distribution that has the module ``vllm``."""
    differs: tuple[WheelPath, ...] = ()
    """Files in which the published wheel is known to differ from the commit."""
    brings: tuple[WheelPath, ...] = ()
    """Directories that the build of the wheel fetched. They are in the wheel and not in the source."""
    source: CommitSource | None = None
    """Where the commit is, if no package index has it. Then vLLM is compiled."""
    native: NativeBuild | None = None
    """How vLLM's extensions are compiled for patches of their source; without it, such patches are refused."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A distribution that is left out though another one asks for it; the lock names it, and no build fetches it."""

    name: Distribution
    """The distribution that is left out."""
    reason: Text
    """Why no profile needs it."""


@dataclass(frozen=True, slots=True)
class Omission:
    """A file of a wheel, or a directory with all below it, that is left out of the image."""

    distribution: Distribution
    """The distribution whose wheel has the file."""
    path: WheelPath
    """The file, or the directory, inside the wheel."""
    reason: Text
    """Why no profile needs it."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A second metadata directory: Python finds DISTRIBUTION under NAME too."""

    name: Distribution
    """The second name."""
    version: Version
    """The version that Python finds under it."""
    distribution: Distribution
    """The distribution that is installed."""


@dataclass(frozen=True, slots=True)
class PythonSet:
    """The distributions of the image, besides what they ask for themselves."""

    requirements: Annotated[tuple[Requirement, ...], NOT_EMPTY]
    """The distributions that are asked for, each at one version. `nvllm lock` adds what they depend on."""
    exclude: tuple[Exclusion, ...] = ()
    """Distributions that are left out though another one asks for them."""
    indexes: Mapping[Distribution, Index] = field(default_factory=dict)
    """Alias of the index of each distribution; a distribution that is not here comes from ``pypi``."""
    aliases: tuple[Alias, ...] = ()
    """Second names under which Python finds a distribution."""
    omit: tuple[Omission, ...] = ()
    """Files and directories of wheels that are left out."""


@dataclass(frozen=True, slots=True)
class PatchChoice:
    """The series, and which of its patches are applied."""

    series: Annotated[str, Rule(f"{_NAME}$", "the name of a directory in patches/, such as v0.28.0")]
    """The series: a directory below ``patches/``."""
    enable: tuple[Name, ...] = ()
    """The patches of the series that are applied, in the order of the series."""
    proved: Literal["required"] | None = None
    """Whether each of them must be proved: `nvllm patch prove` has run its tests without and with it."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What starts the engine, in every profile."""

    entrypoint: Annotated[tuple[CommandWord, ...], NOT_EMPTY]
    """The command in the container; the arguments of the profile follow it."""
    environment: Environment = field(default_factory=dict)
    """Variables of the engine in every profile."""


@dataclass(frozen=True, slots=True)
class DirectoryModel:
    """A local directory pinned by its tree hash; RECIPE names the command that can make it.

    With PATH, the lock computes the tree if the spec does not name it.
    """

    kind: Literal["directory"]
    """The model is a directory on this host."""
    tree: Annotated[str | None, Rule("^sha256:[0-9a-f]{64}$", "sha256: and 64 lower-case hex digits")] = None
    """The hash of all its files, which `nvllm model check` computes."""
    recipe: Name | None = None
    """The recipe by which `nvllm model make` writes it."""
    path: HostPath | None = None
    """Where it lies on this host. Without, it is looked for by its name in the directories of NVLLM_MODELS."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the hub: an exact REVISION (40 hex), or a branch to FOLLOW that the lock pins."""

    kind: Literal["huggingface"]
    """The model is a repository of the Hugging Face hub."""
    repo: Annotated[str, Rule(f"{_NAME}/{_NAME[1:]}$", "a repository of the hub, owner/name")]
    """The repository."""
    revision: Annotated[
        str | None,
        Rule(
            COMMIT,
            "a commit of the repository as 40 lower-case hex digits",
            code="NV102",
            cure="write `follow: {value}` instead, and lock again",
        ),
    ] = None
    """The commit of the repository that is served."""
    follow: Annotated[
        str | None,
        Rule(f"{_NAME}(/{_NAME[1:]})*$", "the name of a branch or tag of the repository, such as main"),
    ] = None
    """The branch or tag whose commit `nvllm lock` pins, in place of a revision."""


Model = DirectoryModel | HubModel


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """What a profile needs of the GPU: the compute capabilities it has code for, and a minimum driver."""

    capabilities: Annotated[tuple[Capability, ...], NOT_EMPTY]
    """The compute capabilities of GPUs on which the profile may run."""
    driver: Annotated[str, Rule(r"^[1-9][0-9]*(\.[0-9]+){0,2}$", 'a driver version in quotes, such as "580.95.05"')]
    """The oldest NVIDIA driver that will do."""
    count: Annotated[int, Rule(minimum=1, maximum=64)] = 1
    """How many GPUs the engine gets."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Bounds of the container. Sizes are bytes (the spec says ``6GiB``), timeouts are seconds."""

    memory: Size
    """The most memory of the container; it does not swap."""
    shared_memory: Size
    """The size of ``/dev/shm`` in the container."""
    temporary: Size
    """The size of ``/tmp`` in the container, which is memory."""
    pids: Annotated[int, Rule(minimum=1, maximum=2**22)]
    """The most processes and threads in the container."""
    start_timeout: Annotated[int, Rule(minimum=1, maximum=86400)]
    """Seconds until the engine must be ready."""
    stall_timeout: Annotated[int, Rule(minimum=20, maximum=86400)] = 600
    """Seconds for which requests may run without progress, or the engine may answer nothing; then it is ended."""
    drain_timeout: Annotated[int, Rule(minimum=0, maximum=3600)] = 0
    """Seconds in which the requests under way may finish when the engine is asked to stop; it takes no new ones then.
    With 0 they are aborted."""
    open_files: Annotated[int, Rule(minimum=1024, maximum=2**20)] = 16384
    """Files and connections that one process may have open; the container engine needs the right to give as many."""


@dataclass(frozen=True, slots=True)
class HostNeed:
    """What the host must have before a start: bytes of MemAvailable."""

    memory_available: Size
    """The least MemAvailable of the host before a start."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The one real generation that makes an engine ready."""

    prompt: Text
    """The prompt that a new engine is asked before it counts as ready."""
    max_tokens: Annotated[int, Rule(minimum=1, maximum=65536)]
    """The most tokens of its answer."""


@dataclass(frozen=True, slots=True)
class Waiver:
    """A named exception from a default, with the reason that is shown at every start."""

    name: Name
    """The exception; see the list of waivers."""
    reason: Text
    """Why the profile needs it. Each start shows it."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask the engine. It decides nothing about what is compiled or answered, and is not hashed."""

    key_file: HostPath | None = None
    """A file of this host with the API key that every request must carry. It is mounted; its content is kept nowhere
    else."""
    publish: Address = LOOPBACK
    """The address of this host on which the port is published, besides the loopback."""


@dataclass(frozen=True, slots=True)
class BlessRules:
    """What a blessing of the profile needs besides trials that passed."""

    valid_days: Annotated[int | None, Rule(minimum=1, maximum=36500)] = None
    """Days after which a blessing is served no more."""
    signers: Annotated[
        str | None,
        Rule(r"^(?!(.*/)?\.\.(/|$))[^\u0000]+$", "a path below the project, or an absolute one, without `..`"),
    ] = None
    """An allowed signers file, one of whom has signed the blessing: a path below the project, or an absolute one."""
    evaluation: Evaluation | None = None
    """What the engine of the first trial is asked, and how much of it must be answered correctly. It is not hashed."""


Missing = Literal["report", "refuse"]
"""``report``: a kernel that is missing while requests are served is compiled outside of the cache, and `nvllm status`
shows it. ``refuse``: it is not compiled, and the engine ends."""


@dataclass(frozen=True, slots=True)
class KernelRules:
    """What becomes of a Triton kernel that the blessed cache lacks, and when a bless takes it for complete."""

    missing: Annotated[Missing, Rule(choices=("report", "refuse"))] = "report"
    """Whether a kernel that a request needs and the cache lacks is compiled and reported, or ends the engine."""
    quiet_rounds: Annotated[int, Rule(minimum=1, maximum=100)] = 2
    """Rounds of requests in a row that must need no new kernel; then a bless takes the kernels for complete."""


MEMORY_FLOOR = 512 * 2**20
"""Bytes of MemAvailable that a host keeps in any case: less, and its kernel begins to kill."""


@dataclass(frozen=True, slots=True)
class RestartRules:
    """How often an engine that died after it was ready is started again, each time after every check."""

    attempts: Annotated[int, Rule(minimum=1, maximum=20)] = 3
    """Restarts at most within WITHIN seconds; one death more, and the supervisor gives up."""
    within: Annotated[int, Rule(minimum=1, maximum=604800)] = 3600
    """Seconds for which a death counts."""
    pause: Annotated[int, Rule(minimum=1, maximum=3600)] = 5
    """Seconds before the first restart. Each further one within WITHIN waits twice as long as the one before."""


@dataclass(frozen=True, slots=True)
class CampaignRules:
    """What holds while many engines of a profile are started one after the other: ablate, bench, bless, bisect."""

    memory_floor: Size = MEMORY_FLOOR
    """Bytes of MemAvailable below which the running engine is ended, and the campaign with it."""
    evaluate_as: Name | None = None
    """The profile whose engine a sweep asks the questions; without, the one that was measured under load is asked."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A named way to serve an image."""

    description: Text
    """What the profile is for, in one line."""
    model: Name
    """The served model: a name among ``models``."""
    arguments: Mapping[ArgumentName, Argument]
    """Arguments of ``vllm serve`` by their long names; true and false switch a flag."""
    port: Annotated[int, Rule(minimum=1024, maximum=65535)]
    """The port on 127.0.0.1 that the engine is published on."""
    limits: ResourceLimits
    host: HostNeed
    probe: Probe
    environment: Environment = field(default_factory=dict)
    """Variables of the engine in this profile."""
    sentinels: tuple[Sentinel, ...] = ()
    """The switchable patches that are on."""
    requires: tuple[Name, ...] = ()
    """The patches without which the profile does not work. One that is upstream in the release counts."""
    gpu: Annotated[GpuNeed | None, Rule(nullable=True)] = None
    """The GPUs that the profile needs; null for a profile on the CPU."""
    waivers: tuple[Waiver, ...] = ()
    """Exceptions from the hardening, each with its reason. They are in the serve hash."""
    dev: bool = False
    """Whether it is for development: it may compile at each start, and is never exported."""
    blessed: bool = False
    """Whether it is served only from a blessed cache."""
    bless: Annotated[BlessRules, NOT_EMPTY] = BlessRules()
    """What a blessing of the profile needs besides trials that passed."""
    kernels: Annotated[KernelRules, NOT_EMPTY] = KernelRules()
    """What becomes of kernels that the blessed cache lacks, on a GPU."""
    gates: Annotated[GateRules, NOT_EMPTY] = GateRules()
    """Gates of the hardware without which it is not started. They say something of the host, and are not hashed."""
    campaign: Annotated[CampaignRules, NOT_EMPTY] = CampaignRules()
    """What holds while a campaign starts one engine after the other."""
    restart: Annotated[RestartRules | None, NOT_EMPTY] = None
    """Whether `nvllm serve` starts an engine again that died; without it, it never does."""
    draft: Name | None = None
    """The model that drafts what MODEL confirms or rejects, in speculative decoding; None where no model does."""
    adapters: tuple[Name, ...] = ()
    """Models of the spec that are LoRA adapters of MODEL. Requests name one of them to be answered with it."""
    chat_template: ProjectPath | None = None
    """A file of the project with the chat template, in the place of the model's own. The lock pins it by sha256."""
    served_name: ServedName | None = None
    """What requests call the model; without, its name in the spec."""
    access: Annotated[Access, NOT_EMPTY] = Access()
    """Who may ask the engine, and on which address."""

    @property
    def eager(self) -> bool:
        """Whether no graph is compiled. Kernels for a GPU are compiled all the same."""
        return self.arguments.get("enforce-eager", False) is not False

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that it needs, each once: the served one, the one that drafts, the adapters."""
        names = (self.model,) if self.draft is None else (self.model, self.draft)
        return tuple(dict.fromkeys((*names, *self.adapters)))


@dataclass(frozen=True, slots=True)
class Lacking:
    """A library that holds no code for a target, and why nothing calls it there."""

    library: WheelPath
    """The library, by its path inside the wheel."""
    reason: Text
    """Why nothing calls it on that target."""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The WHEELS whose libraries must hold code for every target, except the libraries in LACKING."""

    wheels: Annotated[tuple[Distribution, ...], NOT_EMPTY]
    """The distributions whose libraries `nvllm lock` reads."""
    lacking: tuple[Lacking, ...] = ()
    """Libraries that need no code for the targets."""


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """images/<name>.yaml: what people write. No field accepts a moving name without a pin beside it."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    """The format of the file."""
    name: Name
    """The image's name: the name of the file without .yaml."""
    description: Text
    """What the image is for, in one line."""
    platforms: Annotated[tuple[Platform, ...], NOT_EMPTY]
    """The platforms that the image is made for, each with a lock of its own."""
    epoch: Epoch
    """Every file time in the image, in seconds since 1970."""
    base: DebianBase | RegistryBase
    """What the image begins with: Debian packages, or an image of a registry."""
    vllm: VllmPin
    python: PythonSet
    patches: PatchChoice
    runtime: Runtime
    models: Mapping[Name, Model]
    """Every model that a profile names, by name."""
    profiles: Mapping[ProfileName, Profile]
    """The ways to serve the image, by name."""
    targets: Annotated[tuple[Target, ...], NOT_EMPTY] = ()
    """The CUDA architectures that the image must hold code for, such as ``sm_120a``; none on the CPU."""
    device_code: DeviceCode | None = None
    """The wheels in which that code must be; None without targets."""


FORM = Form("image", SCHEMA, "Image spec", ImageSpec, kebab=True)
