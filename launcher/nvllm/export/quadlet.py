"""A serve as a Quadlet: a ``.container`` unit for Podman's generator, and beside it what the container mounts.

Podman mounts the blessed cache as an image, by digest. The paths in the unit are absolute below the directory of the
units, so the files are copied there as they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from nvllm.core.plan import CONTAINER_PORT, KEY_FILE, RUN_DIRECTORY, SEEDS, LaunchPlan
from nvllm.engine.container import tmpfs_options
from nvllm.export import export, mounted, texts
from nvllm.export.export import PROGRAMS_AT, Export, ExportFile, ExportSource, Guarantee, kept, not_kept

_STOP_SLACK = 20
"""Seconds that systemd waits for Podman beyond what Podman waits for the engine."""


def guarantees(source: ExportSource) -> Mapping[str, Guarantee]:
    """Return what of `export.GUARANTEES` the unit of SOURCE keeps."""
    return {
        "image": kept("by digest"),
        "cache": kept("the gate, through the mount of the image"),
        "blessing": not_kept("checked when it was exported; export again after a revocation"),
        "model": kept("the gate, and machine.py for files above 64 MiB"),
        "processor": kept("machine.py, before the gate"),
        "gpu": kept("machine.py asks nvidia-smi, before the gate"),
        "gpu-uuid": kept("AddDevice of the CDI device with that uuid"),
        "gpu-alone": not_kept("systemd takes no locks; nvllm on this host does not know of it"),
        "memory": kept("--memory equal to --memory-swap"),
        "memory-available": kept("machine.py"),
        "pids": kept(f"PidsLimit={source.plan.limits.pids}"),
        "ulimits": kept("Ulimit="),
        "shm": kept("ShmSize="),
        "scratch": not_kept(
            "Tmpfs= with size, mode and owner; but Podman adds /run and /var/tmp, without a limit of their own"
        ),
        "hardening": kept("ReadOnly=, DropCapability=, NoNewPrivileges=, User=; the gate reads it in /proc"),
        "seccomp": kept("Podman's default profile; the gate reads it in /proc"),
        "secrets": kept("none is in the plan"),
        "environment": kept("the gate; Podman's TERM is removed before it"),
        "address": kept(f"PublishPort= on {', '.join(source.plan.addresses)}"),
        "key": export.key(source.plan, "a secret of Podman, which the comment makes"),
        "ready": kept("Notify=healthy, by one real generation"),
        "blessed-start": not_kept("nobody reads the log; loading is forced, and nothing can be saved in the cache"),
        "start-timeout": kept("TimeoutStartSec="),
        "stall-timeout": not_kept("nobody watches the metrics"),
        "restart": _restart(source),
        "drain": kept("StopTimeout=, and TimeoutStopSec= beyond it"),
        "log": kept("Podman's log has a size limit"),
    }


def _restart(source: ExportSource) -> Guarantee:
    if source.restart is None:
        return kept("Restart=no")
    return not_kept(
        "Restart=on-failure with the profile's pause and limit starts one again that exits; machine.py and the gate "
        "check each start. The pause does not grow, an engine that hangs does not exit, and nobody looks for a "
        "revocation"
    )


def exported(source: ExportSource) -> Export:
    """Return the export of SOURCE. There are no `export.refusals`."""
    guaranteed, name = guarantees(source), source.plan.instance
    key_file = source.plan.access.key_file
    made = [] if key_file is None else [shlex.join(["podman", "secret", "create", _secret(source.plan), key_file])]
    text = export.remarks(source, guaranteed, [f"Before the first start: {command}" for command in made])
    text += texts.unit(_sections(source))
    return Export((ExportFile(f"{name}.container", text.encode()), *mounted.mounted_files(source)), guaranteed)


def _sections(source: ExportSource) -> Mapping[str, Sequence[tuple[str, str]]]:
    plan, container = source.plan, source.container
    word = texts.command_word
    settings = [
        ("ContainerName", container.name),
        ("Image", source.image_reference),
        ("Pull", "missing"),
        ("Entrypoint", word(container.command[0])),
        ("Exec", " ".join(word(part) for part in container.command[1:])),
        *(("Environment", word(f"{name}={text}")) for name, text in container.environment.items()),
        *(("Label", word(f"{name}={text}")) for name, text in container.labels.items()),
        ("User", container.uid),
        ("Group", container.gid),
        ("ReadOnly", "true" if container.read_only else "false"),
        ("DropCapability", "all"),
        ("NoNewPrivileges", "true"),
        ("PidsLimit", str(container.pids)),
        *(("Ulimit", f"{name}={limit}:{limit}") for name, limit in container.ulimits.items()),
        ("ShmSize", str(container.shared_memory)),
        (  # Podman would pass on the proxies of its environment, which the gate refuses
            "PodmanArgs",
            f"--memory={container.memory} --memory-swap={container.memory} --ipc=private --http-proxy=false",
        ),
        *(("PublishPort", f"{address}:{container.port}:{CONTAINER_PORT}") for address in container.addresses),
        *_secrets(plan),
        *(
            ("Tmpfs", f"{scratch.target}:{tmpfs_options(container, scratch, 'Podman')}")
            for scratch in container.scratch
        ),
        *(("Volume", f"{path}:{target}:ro") for path, target in _volumes(source)),
        *_blessing(source),
        *(("AddDevice", f"nvidia.com/gpu={uuid}") for uuid in container.gpus),
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
        "Container": settings,
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
    own = [(f"./{mounted.RUN}", RUN_DIRECTORY), (f"./{mounted.PROGRAMS}", PROGRAMS_AT)]
    own += [(f"./{mounted.OWN}{path}", path) for path in sorted(mounted.own_files(source.plan))]
    return [*own, *((mount.source, mount.target) for mount in mounted.model_mounts(source.plan))]


def _blessing(source: ExportSource) -> list[tuple[str, str]]:
    cache = source.plan.cache
    if cache is None:
        return []
    targets = [cache.target, *([SEEDS] if cache.seeds else [])]
    return [
        ("Mount", f"type=image,source={source.blessing_reference},destination={target},rw=false") for target in targets
    ]
