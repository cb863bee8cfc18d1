"""A serve as a Quadlet: a ``.container`` unit for Podman's generator, and beside it what the container mounts.

Podman mounts the blessed cache as an image, by digest. The paths in the unit are absolute below the directory of the
units, so the files are copied there as they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from nvllm.core.plan import CONTAINER_PORT, RUN_DIRECTORY, ulimits
from nvllm.core.refusal import Refusal
from nvllm.fleet import export
from nvllm.fleet.export import PROGRAMS_AT, Export, ExportFile, ExportSource, Held, held, lost
from nvllm.image import engine


def guarantees(source: ExportSource) -> Mapping[str, Held]:
    """Return what of `export.GUARANTEES` the unit of SOURCE keeps."""
    return {
        "image": held("by digest"),
        "cache": held("the gate, through the mount of the image"),
        "blessing": lost("checked when it was exported; export again after a revocation"),
        "model": held("the gate, and machine.py for files above 64 MiB"),
        "processor": held("machine.py, before the gate"),
        "gpu": held("machine.py asks nvidia-smi, before the gate"),
        "gpu-uuid": held("AddDevice of the CDI device with that uuid"),
        "gpu-alone": lost("systemd takes no locks; nvllm on this host does not know of it"),
        "memory": held("--memory equal to --memory-swap"),
        "memory-available": held("machine.py"),
        "pids": held(f"PidsLimit={source.plan.limits.pids}"),
        "ulimits": held("Ulimit="),
        "shm": held("ShmSize="),
        "scratch": lost(
            "Tmpfs= with size, mode and owner; but Podman adds /run and /var/tmp, without a limit of their own"
        ),
        "hardening": held("ReadOnly=, DropCapability=, NoNewPrivileges=, User=; the gate reads it in /proc"),
        "seccomp": held("Podman's default profile; the gate reads it in /proc"),
        "secrets": held("none is in the plan"),
        "environment": held("the gate; Podman's TERM is removed before it"),
        "address": held("PublishPort= on 127.0.0.1"),
        "ready": held("Notify=healthy, by one real generation"),
        "blessed-start": lost("nobody reads the log; loading is forced, and nothing can be saved in the cache"),
        "start-timeout": held("TimeoutStartSec="),
        "stall-timeout": lost("nobody watches the metrics"),
        "no-restart": held("Restart=no"),
        "log": held("Podman's log has a size limit"),
    }


def refusals(source: ExportSource) -> list[Refusal]:
    """Return why SOURCE cannot be exported as a faithful Quadlet."""
    found = export.refusals(source, "quadlet")
    plan = source.plan
    if plan.cache is not None and plan.cache.seeds:
        where = f"profile {plan.profile} of image {plan.image}"
        cure = f"nvllm export compose {plan.image} --profile {plan.profile} --registry {source.repository}"
        expected = "a cache that is mounted as one image"
        found.append(Refusal("NV333", where, expected, "parts of it are mounted a second time, for a GPU", cure))
    return found


def exported(source: ExportSource) -> Export:
    """Return the export of SOURCE. There are no `refusals`."""
    kept, name = guarantees(source), source.plan.instance
    text = export.remarks(source, kept) + export.unit(_sections(source))
    return Export((ExportFile(f"{name}.container", text.encode()), *export.mounted_files(source)), kept)


def _sections(source: ExportSource) -> Mapping[str, Sequence[tuple[str, str]]]:
    plan = source.plan
    word = export.command_word
    command = export.command(plan)
    memory = plan.limits.memory
    container = [
        ("ContainerName", plan.instance),
        ("Image", source.image_reference),
        ("Pull", "missing"),
        ("Entrypoint", word(command[0])),
        ("Exec", " ".join(word(part) for part in command[1:])),
        *(("Environment", word(f"{name}={text}")) for name, text in plan.environment.items()),
        *(("Label", word(f"{name}={text}")) for name, text in export.labels(plan).items()),
        ("User", plan.user.partition(":")[0]),
        ("Group", plan.user.partition(":")[2]),
        ("ReadOnly", "true"),
        ("DropCapability", "all"),
        ("NoNewPrivileges", "true"),
        ("PidsLimit", str(plan.limits.pids)),
        *(("Ulimit", f"{name}={limit}:{limit}") for name, limit in ulimits(plan).items()),
        ("ShmSize", str(plan.limits.shared_memory)),
        ("PodmanArgs", f"--memory={memory} --memory-swap={memory} --ipc=private --http-proxy=false"),
        ("PublishPort", f"127.0.0.1:{plan.port}:{CONTAINER_PORT}"),
        *(("Tmpfs", f"{one.target}:{engine.tmpfs(plan, one.size, 'Podman')}") for one in plan.scratch),
        *(("Volume", f"{source_}:{target}:ro") for source_, target in _volumes(source)),
        *_blessing(source),
        *(("AddDevice", f"nvidia.com/gpu={gpu.uuid}") for gpu in plan.gpus),
        ("LogDriver", "k8s-file"),
        ("LogOpt", "max-size=50mb"),
        ("StopTimeout", "10"),
        ("HealthCmd", shlex.join(export.program(plan, "generation.py"))),
        ("HealthInterval", f"{export.CHECK_EVERY}s"),
        ("HealthTimeout", f"{export.PROBE_TIMEOUT}s"),
        ("HealthStartPeriod", f"{plan.limits.start_timeout}s"),
        ("Notify", "healthy"),
    ]
    return {
        "Unit": [("Description", f"vLLM: profile {plan.profile} of image {plan.image}")],
        "Container": container,
        "Service": [("Restart", "no"), ("TimeoutStartSec", str(plan.limits.start_timeout))],
        "Install": [("WantedBy", "default.target")],
    }


def _volumes(source: ExportSource) -> list[tuple[str, str]]:
    own = [(f"./{export.RUN}", RUN_DIRECTORY), (f"./{export.PROGRAMS}", PROGRAMS_AT)]
    return [*own, *((one.source, one.target) for one in export.model_mounts(source.plan))]


def _blessing(source: ExportSource) -> list[tuple[str, str]]:
    cache = source.plan.cache
    if cache is None:
        return []
    return [("Mount", f"type=image,source={source.blessing_reference},destination={cache.target},rw=false")]
