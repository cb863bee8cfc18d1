"""A serve as a Quadlet: a ``.container`` unit for Podman's generator, and beside it what the container mounts.

Podman mounts the blessed cache as an image, by digest. The paths in the unit are absolute below the directory of the
units, so the files are copied there as they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from nvllm.core.plan import CONTAINER_PORT, KEY_FILE, RUN_DIRECTORY, SEEDS, LaunchPlan, ulimits
from nvllm.core.refusal import Refusal
from nvllm.engine import engine
from nvllm.export import export
from nvllm.export.export import PROGRAMS_AT, Export, ExportFile, ExportSource, Held, held, lost

_STOP_SLACK = 20
"""Seconds that systemd waits for Podman beyond what Podman waits for the engine."""


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
        "address": held(f"PublishPort= on {', '.join(source.plan.addresses)}"),
        "key": export.key(source.plan, "a secret of Podman, which the comment makes"),
        "ready": held("Notify=healthy, by one real generation"),
        "blessed-start": lost("nobody reads the log; loading is forced, and nothing can be saved in the cache"),
        "start-timeout": held("TimeoutStartSec="),
        "stall-timeout": lost("nobody watches the metrics"),
        "restart": _restart(source),
        "drain": held("StopTimeout=, and TimeoutStopSec= beyond it"),
        "log": held("Podman's log has a size limit"),
    }


def _restart(source: ExportSource) -> Held:
    if source.restart is None:
        return held("Restart=no")
    return lost(
        "Restart=on-failure with the profile's pause and limit starts one again that exits; machine.py and the gate "
        "check each start. The pause does not grow, an engine that hangs does not exit, and nobody looks for a "
        "revocation"
    )


def refusals(source: ExportSource) -> list[Refusal]:
    """Return why SOURCE cannot be exported as a faithful Quadlet."""
    return export.refusals(source, "quadlet")


def exported(source: ExportSource) -> Export:
    """Return the export of SOURCE. There are no `refusals`."""
    kept, name = guarantees(source), source.plan.instance
    key_file = source.plan.access.key_file
    made = [] if key_file is None else [shlex.join(["podman", "secret", "create", _secret(source.plan), key_file])]
    text = export.remarks(source, kept, [f"Before the first start: {one}" for one in made])
    text += export.unit(_sections(source))
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
        *(("PublishPort", f"{address}:{plan.port}:{CONTAINER_PORT}") for address in plan.addresses),
        *_secrets(plan),
        *(("Tmpfs", f"{one.target}:{engine.tmpfs(plan, one.size, 'Podman')}") for one in plan.scratch),
        *(("Volume", f"{source_}:{target}:ro") for source_, target in _volumes(source)),
        *_blessing(source),
        *(("AddDevice", f"nvidia.com/gpu={gpu.uuid}") for gpu in plan.gpus),
        ("LogDriver", "k8s-file"),
        ("LogOpt", "max-size=50mb"),
        ("StopTimeout", str(source.stop_timeout)),
        ("HealthCmd", shlex.join(export.program(plan, "generation.py"))),
        ("HealthInterval", f"{export.CHECK_EVERY}s"),
        ("HealthTimeout", f"{export.PROBE_TIMEOUT}s"),
        ("HealthStartPeriod", f"{plan.limits.start_timeout}s"),
        ("Notify", "healthy"),
    ]
    return {
        "Unit": [("Description", f"vLLM: profile {plan.profile} of image {plan.image}"), *_limit(source)],
        "Container": container,
        "Service": [
            *_again(source),
            ("TimeoutStartSec", str(plan.limits.start_timeout)),
            ("TimeoutStopSec", str(source.stop_timeout + _STOP_SLACK)),
        ],
        "Install": [("WantedBy", "default.target")],
    }


def _secret(plan: LaunchPlan) -> str:
    return f"{plan.instance}-api-key"


def _secrets(plan: LaunchPlan) -> list[tuple[str, str]]:
    if plan.access.key_file is None:
        return []
    uid, _, gid = plan.user.partition(":")
    return [("Secret", f"{_secret(plan)},type=mount,target={KEY_FILE},uid={uid},gid={gid},mode=0400")]


def _limit(source: ExportSource) -> list[tuple[str, str]]:
    """Return how often systemd starts the unit at most: once, and as often again as the profile allows."""
    rules = source.restart
    if rules is None:
        return []
    return [("StartLimitIntervalSec", str(rules.within)), ("StartLimitBurst", str(rules.attempts + 1))]


def _again(source: ExportSource) -> list[tuple[str, str]]:
    rules = source.restart
    return [("Restart", "no")] if rules is None else [("Restart", "on-failure"), ("RestartSec", str(rules.pause))]


def _volumes(source: ExportSource) -> list[tuple[str, str]]:
    own = [(f"./{export.RUN}", RUN_DIRECTORY), (f"./{export.PROGRAMS}", PROGRAMS_AT)]
    own += [(f"./{export.OWN}{path}", path) for path in sorted(export.own_files(source.plan))]
    return [*own, *((one.source, one.target) for one in export.model_mounts(source.plan))]


def _blessing(source: ExportSource) -> list[tuple[str, str]]:
    cache = source.plan.cache
    if cache is None:
        return []
    targets = [cache.target, *([SEEDS] if cache.seeds else [])]
    return [
        ("Mount", f"type=image,source={source.blessing_reference},destination={target},rw=false") for target in targets
    ]
