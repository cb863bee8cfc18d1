"""The table of host checks: what must hold on this host before a launch plan is carried out.

Everything here is pure: a check reads a :class:`Subject` and nothing else. `doctor` shows the :class:`Outcome` objects
of :func:`outcomes`, and `serve` refuses with the refusals in the same objects, so the two always agree. All checks
always run; no failure hides another one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from nvllm.core.plan import EVERY_ADDRESS, LaunchPlan
from nvllm.core.refusal import Refusal
from nvllm.core.spec import LOOPBACK, GpuNeed
from nvllm.host import engines, gates
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact, EngineFacts, EngineProblem, HostFacts
from nvllm.host.gates import GateState

MINIMUM_TOOLKIT = "1.17.8"
"""The first without the escapes from a container that `_toolkit` names."""

_GIB = 2**30
_ENGINE = "docker engine"


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """BYTES that will be written at PATH, a key of ``HostFacts.disks``, and WHY, for the message."""

    path: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What the checks read. Without a PLAN only the host itself is checked.

    DISK is what will be written; SENTINELS are those that the patch set of the plan's image reads; GATES are what the
    profile requires and what the state directory has.
    """

    plan: LaunchPlan | None
    facts: HostFacts
    disk: tuple[DiskNeed, ...] = ()
    sentinels: frozenset[str] = frozenset()
    gates: GateState = field(default_factory=GateState)

    @property
    def launch(self) -> LaunchPlan:
        """The plan, for checks that need one."""
        assert self.plan is not None
        return self.plan

    @property
    def gpu(self) -> GpuNeed:
        """The plan's GPU need, for checks that need one."""
        assert self.launch.gpu is not None
        return self.launch.gpu

    @property
    def engine(self) -> EngineFacts:
        """The engine, for checks that need one that answers."""
        assert self.facts.engine is not None
        return self.facts.engine


Need = Literal["plan", "gpu wanted", "gpu there", "disk", "engine", "bridge", "locks"]
Judgement: TypeAlias = str | list[Refusal]
"""The result of a check: a short text about what it found if all is well, or the refusals."""


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of the table: the function JUDGE, and what must be known (NEEDS) before it can be called."""

    code: str
    name: str
    needs: tuple[Need, ...]
    judge: Callable[[Subject], Judgement]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check as `doctor` shows it. A skipped check was not made; DETAIL says why."""

    code: str
    name: str
    state: Literal["ok", "refused", "skipped"]
    detail: str
    refusals: tuple[Refusal, ...] = ()


def outcomes(subject: Subject) -> tuple[Outcome, ...]:
    """Run every check of the table on SUBJECT and return all results, in the table's order, which is by code.

    Raises KeyError if a disk need names a path that the facts do not hold.
    """
    return tuple(_outcome(check, subject) for check in TABLE)


def _outcome(check: Check, subject: Subject) -> Outcome:
    for need in check.needs:
        known, reason = _NEEDS[need]
        if not known(subject):
            return Outcome(check.code, check.name, "skipped", reason)
    judgement = check.judge(subject)
    if isinstance(judgement, str):
        return Outcome(check.code, check.name, "ok", judgement)
    refusals = tuple(sorted(judgement))
    return Outcome(check.code, check.name, "refused", "; ".join(refusal.found for refusal in refusals), refusals)


def _has_bridge_of_its_own(subject: Subject) -> bool:
    engine = subject.facts.engine
    return engine is not None and not engine.rootless and engine.bridge_interface is not None


NO_PLAN = "no profile is named"
"""Why a check of a launch plan was not made."""

# In the table's entries a later need may rely on an earlier one.
_NEEDS: dict[Need, tuple[Callable[[Subject], bool], str]] = {
    "plan": (lambda subject: subject.plan is not None, NO_PLAN),
    "gpu wanted": (lambda subject: subject.launch.gpu is not None, "the profile needs no GPU"),
    "gpu there": (lambda subject: bool(subject.facts.gpus), "the host has no GPU"),
    "disk": (lambda subject: bool(subject.disk), "nothing is to be written"),
    "engine": (lambda subject: subject.facts.engine is not None, "no engine answers"),
    "bridge": (_has_bridge_of_its_own, "the engine has no bridge interface in this network namespace"),
    "locks": (lambda subject: subject.facts.locks is not None, "the state directory was not checked"),
}


def _at_least(size: int) -> str:
    """Return SIZE in GiB, rounded up: a need must not look smaller than it is."""
    return f"{math.ceil(size * 10 / _GIB) / 10:.1f} GiB"


def _at_most(size: int) -> str:
    """Return SIZE in GiB, rounded down, so that what is short of a need never reads the same as the need."""
    return f"{math.floor(size * 10 / _GIB) / 10:.1f} GiB"


# The judges, by code


def gpus(need: GpuNeed, facts: HostFacts) -> Judgement:
    """Judge whether the host has as many GPUs as NEED says."""
    if len(facts.gpus) >= need.count:
        return ", ".join(f"GPU {gpu.index} {gpu.name}" for gpu in facts.gpus)
    if facts.gpu_problem is not None:
        problem, cure = facts.gpu_problem, "nvidia-smi"
    elif facts.gpus:
        problem, cure = f"{len(facts.gpus)}", "choose a profile that needs fewer GPUs"
    else:
        problem, cure = "none", "install the NVIDIA driver, or choose a profile without a GPU, such as those of cpu"
    expected = f"at least {need.count} NVIDIA GPU{'s' if need.count > 1 else ''}"
    return [Refusal("NV501", "nvidia-smi", expected, problem, cure)]


def _capability(subject: Subject) -> Judgement:
    """Check every GPU of the host: Docker is asked for a number of GPUs, so it may take any of them."""
    accepted, image = subject.gpu.capabilities, f"images/{subject.launch.image}.yaml"
    return [
        Refusal(
            "NV502",
            f"GPU {gpu.index} ({gpu.name}, {gpu.uuid})",
            f"compute capability {' or '.join(accepted)}",
            gpu.capability,
            f"serve an image that has code for {gpu.capability}; {image} has none",
        )
        for gpu in subject.facts.gpus
        if gpu.capability not in accepted
    ] or ", ".join(f"GPU {gpu.index}: {gpu.capability}" for gpu in subject.facts.gpus)


def _driver(subject: Subject) -> Judgement:
    minimum = subject.gpu.driver
    return [
        Refusal(
            "NV503",
            f"GPU {gpu.index} ({gpu.name}, {gpu.uuid})",
            f"NVIDIA driver {minimum} or newer",
            gpu.driver,
            f"install NVIDIA driver {minimum} or newer, and reboot",
        )
        for gpu in subject.facts.gpus
        if engines.older(gpu.driver, minimum)
    ] or f"NVIDIA driver {subject.facts.gpus[0].driver}"


def _toolkit(subject: Subject) -> Judgement:
    version, package = subject.facts.toolkit, "nvidia-container-toolkit"
    expected = f"NVIDIA container toolkit {MINIMUM_TOOLKIT} or newer"
    if version is None:
        problem = subject.facts.toolkit_problem or "no nvidia-ctk on PATH"
        return [Refusal("NV504", "nvidia-ctk", expected, problem, f"apt-get install {package}")]
    if not engines.older(version, MINIMUM_TOOLKIT):
        return f"NVIDIA container toolkit {version}"
    # CVE-2024-0132, up to 1.16.1: a crafted image reaches the host's files. CVE-2025-23266, up to 1.17.7: hooks,
    # privilege escalation.
    escapes = "CVE-2024-0132 and CVE-2025-23266" if engines.older(version, "1.16.2") else "CVE-2025-23266"
    problem = f"{version}, which has {escapes}"
    return [Refusal("NV504", "nvidia-ctk", expected, problem, f"apt-get install --only-upgrade {package}")]


def _memory(subject: Subject) -> Judgement:
    need, available = subject.launch.host.memory_available, subject.facts.mem_available
    expected = f"at least {_at_least(need)} of MemAvailable"
    free = "no MemAvailable" if available is None else _at_most(available)
    if available is not None and available >= need:
        return f"{free} of MemAvailable, {_at_least(need)} needed"
    cure = "stop what uses memory, or choose a profile with a smaller host.memory-available"
    return [Refusal("NV505", "/proc/meminfo", expected, free, cure)]


def _disk(subject: Subject) -> Judgement:
    """Check each file system against the sum of what will be written to it, not path by path."""
    disks = subject.facts.disks
    by_filesystem: dict[int, list[DiskNeed]] = defaultdict(list)
    for need in subject.disk:
        by_filesystem[disks[need.path].filesystem].append(need)
    seen: list[str] = []
    refusals: list[Refusal] = []
    for needs in by_filesystem.values():
        total, free = sum(need.bytes for need in needs), min(disks[need.path].free for need in needs)
        paths = ", ".join(sorted({need.path for need in needs}))
        seen.append(f"{_at_most(free)} free at {paths}, {_at_least(total)} needed")
        if free < total:
            reasons = ", ".join(f"{_at_least(need.bytes)} for {need.why}" for need in needs)
            expected = f"at least {_at_least(total)} free ({reasons})"
            cure = "nvllm gc"
            refusals.append(Refusal("NV506", paths, expected, f"{_at_most(free)} free", cure))
    return refusals or "; ".join(seen)


def _port(subject: Subject) -> Judgement:
    """Check the port on each address that it is published on. One on all of them is known as one on 127.0.0.1."""
    port, addresses = subject.launch.port, {LOOPBACK, *subject.launch.addresses}
    return [
        Refusal(
            "NV507",
            f"{listener.address}:{port}",
            "a free port",
            "a program of another user"
            if listener.pid is None
            else f"pid {listener.pid} ({listener.program}) listening",
            # Without sudo, ss(8) names no program of another user.
            f"sudo ss -ltnp 'sport = :{port}'",
        )
        for listener in subject.facts.listeners
        if listener.port == port and (listener.address in addresses or EVERY_ADDRESS in addresses)
    ] or f"nobody listens on {port}"


def _containers_of_the_name(subject: Subject) -> list[ContainerFact]:
    return [container for container in subject.facts.containers if container.name == subject.launch.instance]


def _not_running(subject: Subject) -> Judgement:
    name = subject.launch.instance
    return [
        Refusal(
            "NV508",
            f"{_ENGINE}: container {name}",
            "a profile that is not being served yet",
            f"container {container.id[:12]} running",
            f"nvllm stop {name}",
        )
        for container in _containers_of_the_name(subject)
        if container.by_nvllm and container.running and not container.of_another(subject.facts.home)
    ] or f"{name} is not running"


def _not_foreign(subject: Subject) -> Judgement:
    name = subject.launch.instance
    return [
        Refusal(
            "NV509",
            f"{_ENGINE}: container {name}",
            f"no container of that name, or one labelled {INSTANCE_LABEL}={name}",
            f"container {container.id[:12]}, "
            + (
                f"labelled {INSTANCE_LABEL}={container.labels[INSTANCE_LABEL]}"
                if INSTANCE_LABEL in container.labels
                else "which nvllm did not create"
            ),
            f"docker rename {container.id[:12]} {name}-foreign",
        )
        for container in _containers_of_the_name(subject)
        if not container.by_nvllm
    ] + [
        Refusal(
            "NV509",
            f"{_ENGINE}: container {name}",
            "no container of that name, or one of this home",
            f"container {container.id[:12]}, which another home started",
            container.stop,
        )
        for container in _containers_of_the_name(subject)
        if container.by_nvllm and container.of_another(subject.facts.home)
    ] or f"no foreign container is called {name}"


def _engine_reachable(subject: Subject) -> Judgement:
    engine = subject.facts.engine
    if engine is not None:
        return engines.described(engine)
    return [engines.unreachable(subject.facts.engine_problem or EngineProblem("silent", _ENGINE, "no answer"))]


def _engine_new_enough(subject: Subject) -> Judgement:
    old = engines.too_old(subject.engine)
    return f"API {subject.engine.api_version}" if old is None else [old]


def _locks(subject: Subject) -> Judgement:
    locks = subject.facts.locks
    assert locks is not None
    if locks.problem is None:
        return f"flock works in {locks.directory}"
    cure = "set NVLLM_HOME to a directory of yours on a local file system"
    return [Refusal("NV513", locks.directory, "a directory in which flock works", locks.problem, cure)]


def _bridge(subject: Subject) -> Judgement:
    """Check the engine's default bridge: a second engine in one network namespace deletes that of the first."""
    interface = subject.engine.bridge_interface
    if interface in subject.facts.interfaces:
        return f"the engine's bridge {interface} is there"
    problem = "no interface of that name on this host; a second dockerd in one network namespace removes it"
    cure = "sudo systemctl restart docker"
    return [Refusal("NV514", f"{_ENGINE}: network bridge", f"the network interface {interface}", problem, cure)]


def _sentinels(subject: Subject) -> Judgement:
    plan, known = subject.launch, subject.sentinels
    listed = ", ".join(sorted(known)) or "it reads none"
    return [
        Refusal(
            "NV602",
            f"images/{plan.image}.yaml: .profiles.{plan.profile}.sentinels",
            f"sentinels that the image's patch set reads: {listed}",
            sentinel,
            f"take {sentinel} out of the profile, or enable its patch and the one that reads sentinels",
        )
        for sentinel in plan.sentinels
        if sentinel not in known
    ] or (", ".join(plan.sentinels) or "the profile sets none")


TABLE: tuple[Check, ...] = (
    Check("NV501", "GPU", ("plan", "gpu wanted"), lambda subject: gpus(subject.gpu, subject.facts)),
    Check("NV502", "compute capability", ("plan", "gpu wanted", "gpu there"), _capability),
    Check("NV503", "NVIDIA driver", ("plan", "gpu wanted", "gpu there"), _driver),
    Check("NV504", "container toolkit", ("plan", "gpu wanted"), _toolkit),
    Check("NV505", "memory", ("plan",), _memory),
    Check("NV506", "disk", ("disk",), _disk),
    Check("NV507", "port", ("plan",), _port),
    Check("NV508", "not running yet", ("plan", "engine"), _not_running),
    Check("NV509", "container name", ("plan", "engine"), _not_foreign),
    Check("NV510", "engine", (), _engine_reachable),
    Check("NV511", "engine version", ("engine",), _engine_new_enough),
    Check("NV513", "file locks", ("locks",), _locks),
    Check("NV514", "engine network", ("engine", "bridge"), _bridge),
    Check("NV516", "hardware gates", ("plan",), lambda subject: gates.judge(subject.gates, subject.facts)),
    Check("NV602", "sentinels", ("plan",), _sentinels),
)
"""Every host check, by code. NV512 is not here: `proc.require` raises it where a program is first needed."""
