"""What the tests of the host share: a host on which nothing is wrong, a plan for it, and small fake programs."""

from __future__ import annotations

from pathlib import Path

from nvllm.core.plan import SCHEMA, LaunchPlan, PlannedCommand, PlannedCpu, ServedModel
from nvllm.core.refusal import Refusal
from nvllm.core.spec import GpuNeed, HostNeed, Probe, ResourceLimits
from nvllm.host import checks
from nvllm.host.facts import Cpu, DiskFacts, EngineFacts, Gpu, HostFacts, LockFacts

GIB = 2**30

ENGINE = EngineFacts("20.10.24+dfsg1", "1.41", "overlay2", False, "docker0")

GPU = Gpu(0, "GPU-6f1c", "NVIDIA GB10", "12.1", "580.95.05")

CPU = Cpu("x86_64", "AuthenticAMD 26 2", ("avx2", "avx512f", "fma"), 8, 4, 1)

HOST = HostFacts(
    mem_available=64 * GIB,
    cpu=CPU,
    disks={"/var/lib/nvllm": DiskFacts(100 * GIB, 1)},
    listeners=(),
    interfaces=frozenset({"lo", "docker0"}),
    gpus=(GPU,),
    gpu_problem=None,
    toolkit="1.18.0",
    toolkit_problem=None,
    uid=1000,
    gid=1000,
    engine=ENGINE,
    locks=LockFacts("/var/lib/nvllm/locks", None),
)

NEED = GpuNeed(("12.0", "12.1"), "575.51.03")

PLAN = LaunchPlan(
    schema=SCHEMA,
    instance="nvllm-sm120-lower8",
    image="sm120",
    image_id="sha256:" + "1" * 64,
    build_hash="2" * 64,
    profile="lower8",
    dev=False,
    serve_hash="3" * 64,
    command=PlannedCommand((), ("vllm", "serve")),
    environment={},
    mounts=(),
    scratch=(),
    user="1000:1000",
    port=8000,
    limits=ResourceLimits(6 * GIB, GIB, GIB, 512, 300),
    host=HostNeed(3 * GIB),
    gpu=NEED,
    gpus=(),
    cpu=PlannedCpu(CPU.machine, CPU.kind, CPU.flags, None),
    model=ServedModel("m", "/model", "sha256:" + "4" * 64, None),
    draft=None,
    sentinels=(),
    waivers=(),
    probe=Probe("hello", 4),
)


def put_program(directory: Path, name: str, *lines: str) -> None:
    """Write a program NAME of shell LINES to DIRECTORY, which is made to be all that PATH holds."""
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text("\n".join(("#!/bin/sh", *lines, "")))
    program.chmod(0o755)


def refusals(subject: checks.Subject) -> tuple[Refusal, ...]:
    """Return the refusals of all host checks of SUBJECT, sorted by code."""
    return tuple(sorted(refusal for outcome in checks.outcomes(subject) for refusal in outcome.refusals))
