"""Exports: a serve that something else than nvllm starts, as files, and which of its guarantees those files keep.

`ExportSource` says what of an examined serve is exported, `mounted.py` what its container reads, and one module of each
platform turns that into files. They are functions of their arguments; nothing here writes or asks a registry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nvllm.cache.cachetree import Tree
from nvllm.core.lock import LockedModel
from nvllm.core.plan import ACCESS_PROGRAM, LaunchPlan
from nvllm.core.refusal import Refusal
from nvllm.core.spec import RestartRules
from nvllm.engine.container import Container, of_plan
from nvllm.serve import startup

GUARANTEES: Mapping[str, str] = {
    "image": "the image is exactly the built one",
    "cache": "every byte of the blessed cache is hashed at each start, through its mount",
    "blessing": "a blessing that was revoked, has expired or is not signed is not served",
    "model": "every byte of the model is hashed at each start, through its mount",
    "processor": "the processor is the one that the cache was compiled for",
    "gpu": "name, compute capability and driver of the GPUs are those that the cache was compiled for",
    "gpu-uuid": "the engine gets the GPUs that the plan names by uuid",
    "gpu-alone": "no second engine gets the same GPU, and none the same serve hash",
    "memory": "the engine ends at its memory limit, and does not swap",
    "memory-available": "the host has the memory that the profile asks for",
    "pids": "the number of processes is limited",
    "ulimits": "the number of open files of a process is limited, and no memory is written into core files",
    "shm": "shared memory has the size of the profile",
    "scratch": "what the engine writes is in memory, limited in size, and its own user's alone",
    "hardening": "read-only root, no capability, no new privileges, another user than root",
    "seccomp": "system calls are filtered",
    "secrets": "no secret is in the container, but the file with the API key if the profile names one",
    "environment": "no variable is there that the plan lacks",
    "address": "the engine is reached at the addresses of the profile, without one by this host alone",
    "key": "who asks needs the API key, if the profile names a file with one",
    "ready": "ready means that one real generation came back",
    "blessed-start": "a start that compiled, or has fewer KV tokens than the trials, is not ready",
    "start-timeout": "a start that takes longer than the profile allows is ended",
    "stall-timeout": "an engine that answers nothing, or whose requests make no progress, is ended",
    "restart": "an engine that died is started again only if and as often as the profile says, after every check",
    "drain": "requests under way may finish at a stop, for as long as the profile says",
    "log": "the log is limited in size",
}
"""What `nvllm serve` holds, each in one line."""

NAMED = frozenset({"host-ipc", "host-network", "no-seccomp", "writable-root"})
"""The waivers that change how a container is made."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Whether an export keeps a guarantee, and by what; BY says why not where it does not."""

    kept: bool
    by: str


def kept(by: str) -> Guarantee:
    """Return that a guarantee is kept BY this."""
    return Guarantee(by=by, kept=True)


def not_kept(why: str) -> Guarantee:
    """Return that a guarantee is not kept, and WHY."""
    return Guarantee(by=why, kept=False)


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file of an export at PATH below its directory."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Export:
    """The FILES of an export, and what of `GUARANTEES` they keep. Where COPIES_CACHE, the tree lies at ``cache``."""

    files: tuple[ExportFile, ...]
    guarantees: Mapping[str, Guarantee]
    copies_cache: bool = False


@dataclass(frozen=True, slots=True)
class ExportSource:
    """What is exported: PLAN, which loads the cache TREE if it is a blessed one, and its locked MODELS.

    REPOSITORY is ``host[:port]/path``; IMAGE and BLESSING are digests of manifests in it. MODELS_AT is the directory of
    the nodes that has the models, or a claim: ``pvc:NAME``. RESTART is the profile's.
    """

    plan: LaunchPlan
    models: tuple[LockedModel, ...]
    platform: str
    tree: Tree | None = None
    label: str = ""
    repository: str = ""
    blessing: str = ""
    models_at: str = ""
    restart: RestartRules | None = None

    @property
    def stop_timeout(self) -> int:
        """Seconds from a stop to the kill."""
        return startup.STOP_PATIENCE + self.plan.limits.drain_timeout

    @property
    def image_reference(self) -> str:
        return f"{self.repository}@{self.plan.manifest_id}"

    @property
    def container(self) -> Container:
        """The engine's container, as nvllm itself would create it, with the command and the labels of an export."""
        # Not nvllm's own labels: by them it would take the container for one that it started, and may end.
        container = of_plan(self.plan, labels(self.plan))
        return replace(container, command=(*program(self.plan, "machine.py"), *container.command))

    @property
    def blessing_reference(self) -> str:
        return f"{self.repository}@{self.blessing}"


def key(plan: LaunchPlan, mounted: str) -> Guarantee:
    """Return that the key of PLAN is asked for, where it is MOUNTED by this."""
    return kept("the profile names none" if plan.access.key_file is None else f"{ACCESS_PROGRAM}; {mounted}")


def relevant(refusals: Sequence[Refusal]) -> list[Refusal]:
    """Return those of the REFUSALS of an examination that count for an export: it is for another host, or for later."""
    return [refusal for refusal in refusals if refusal.blame != "moment"]


def refusals(source: ExportSource, platform: str) -> list[Refusal]:
    """Return why SOURCE cannot be exported to PLATFORM, ``kubernetes`` for example, as a faithful copy."""
    plan = source.plan
    where = f"profile {plan.profile} of image {plan.image}"
    cure = f"nvllm export systemd {plan.image} --profile {plan.profile}"
    refused = []
    if plan.dev:
        serve = f"nvllm serve {plan.image} --profile {plan.profile}"
        refused.append(Refusal("NV333", where, "a profile for production", "dev: true", serve))
    if platform == "systemd":
        return refused
    waived = sorted(NAMED & {waiver.name for waiver in plan.waivers})
    refused += [
        Refusal("NV333", where, f"a profile that keeps its hardening in {platform}", waiver, cure) for waiver in waived
    ]
    if not plan.manifest_id:
        expected = "an image whose manifest has a digest before a push"
        refused.append(
            Refusal("NV333", f"image {plan.image}", expected, "a base whose blobs only the engine knows", cure)
        )
    return refused


PROGRAMS_AT = "/nvllm"
"""Inside the container: the directory of the programs, of ``machine.json`` and of ``launch.json``, read-only."""


def program(plan: LaunchPlan, name: str, *arguments: str) -> list[str]:
    """Return the command that runs the program NAME with ARGUMENTS by the interpreter of the image of PLAN."""
    return [plan.command.interpreter, "-I", f"{PROGRAMS_AT}/{name}", *arguments]


PROBE_EVERY, PROBE_TIMEOUT = 10, 60
"""Seconds between two probes of a start, and of one at most."""

CHECK_EVERY = 30
"""Seconds between two probes where an engine has one interval for the start and for the time after it."""


def tries(plan: LaunchPlan) -> int:
    """Return how many probes of a start may fail."""
    return math.ceil(plan.limits.start_timeout / PROBE_EVERY)


def labels(plan: LaunchPlan) -> dict[str, str]:
    """Return the labels of what is exported. None of them claims a container for nvllm itself."""
    return {
        "nvllm.image": plan.image,
        "nvllm.profile": plan.profile,
        "nvllm.build-hash": plan.build_hash,
        "nvllm.serve-hash": plan.serve_hash,
    }


def remarks(source: ExportSource, guarantees: Mapping[str, Guarantee], before: Sequence[str] = ()) -> str:
    """Return the comment at the top of a file of SOURCE: what it is, and each of GUARANTEES that it does not keep.

    BEFORE are lines about what has to be done before it is used.
    """
    plan = source.plan
    served = f"{plan.profile} of image {plan.image}, serve hash {plan.serve_hash}"
    lines = [f"Written by nvllm export: {served}"]
    if source.label:
        lines.append(f"Blessing {source.label}")
    lacking = [
        f"  {name}: {GUARANTEES[name]}. Here: {guarantee.by}"
        for name, guarantee in guarantees.items()
        if not guarantee.kept
    ]
    return "".join(f"# {line}\n" for line in [*lines, *before, "Not held here, but by nvllm serve:", *lacking])
