"""A serve as a project of Docker Compose: ``compose.yaml``, and beside it everything that the container mounts.

``docker-compose.yaml`` is the same for Compose 1.29, as Debian 12 has it. That looks for it first, later ones do last.

The directory holds a copy of the blessed cache, so that it can be carried to another host. The gate hashes that copy
through its mount at each start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from nvllm.core.plan import CONTAINER_PORT, KEY_FILE, RUN_DIRECTORY, SEEDS
from nvllm.engine import container
from nvllm.export import export, mounted, texts
from nvllm.export.export import PROGRAMS_AT, Export, ExportFile, ExportSource, Guarantee, kept, not_kept

FILE = "compose.yaml"
OLDER_FILE = "docker-compose.yaml"

_SECRET = PurePosixPath(KEY_FILE).name
"""Compose mounts a secret of this name where the engine looks for the key."""


def guarantees(source: ExportSource) -> Mapping[str, Guarantee]:
    """Return what of `export.GUARANTEES` the project of SOURCE keeps."""
    return {
        "image": kept("by digest"),
        "cache": kept("the gate"),
        "blessing": not_kept("checked when it was exported; export again after a revocation"),
        "model": kept("the gate, and machine.py for files above 64 MiB"),
        "processor": kept("machine.py, before the gate"),
        "gpu": kept("machine.py asks nvidia-smi, before the gate"),
        "gpu-uuid": kept("device_ids"),
        "gpu-alone": not_kept("Compose takes no locks; nvllm on this host does not know of it"),
        "memory": kept("mem_limit equal to memswap_limit"),
        "memory-available": kept("machine.py"),
        "pids": kept(f"pids_limit {source.plan.limits.pids}"),
        "ulimits": kept("ulimits"),
        "shm": kept("shm_size"),
        "scratch": kept("tmpfs with size, mode and owner"),
        "hardening": kept("read_only, cap_drop, no-new-privileges; the gate reads it in /proc"),
        "seccomp": kept("the engine's default profile; the gate reads it in /proc"),
        "secrets": kept("none is in the plan"),
        "environment": kept("the gate"),
        "address": kept(f"published on {', '.join(source.plan.addresses)}"),
        "key": export.key(source.plan, "Compose mounts its file as a secret"),
        "ready": kept("healthcheck by one real generation: docker compose up --wait"),
        "blessed-start": not_kept("nobody reads the log; loading is forced, and nothing can be saved in the cache"),
        "start-timeout": not_kept("the container becomes unhealthy, and is not ended"),
        "stall-timeout": not_kept("nobody watches the metrics"),
        "restart": _restart(source),
        "drain": kept("stop_grace_period"),
        "log": kept("json-file, two files of 50 MB"),
    }


def _restart(source: ExportSource) -> Guarantee:
    rules = source.restart
    if rules is None:
        return kept("restart: no")
    return not_kept(
        f"restart: on-failure:{rules.attempts} starts one again that exits; machine.py and the gate check each start. "
        f"Docker has pauses of its own and no time of {rules.within} s, an engine that hangs does not exit, and nobody "
        "looks for a revocation"
    )


def exported(source: ExportSource) -> Export:
    """Return the export of SOURCE. There are no `export.refusals`."""
    guaranteed = guarantees(source)
    # Compose takes no capital letter in the name of a project.
    document = {"name": source.plan.instance.lower(), "services": {"engine": _service(source)}}
    if source.plan.access.key_file is not None:
        document["secrets"] = {_SECRET: {"file": _literal(source.plan.access.key_file)}}
    remarks = export.remarks(source, guaranteed)
    files = [
        ExportFile(path, (remarks + texts.yaml_documents([content])).encode())
        for path, content in ((FILE, document), (OLDER_FILE, _older(document)))
    ]
    return Export((*files, *mounted.mounted_files(source)), guaranteed, copies_cache=source.tree is not None)


def _older(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return DOCUMENT for Compose 1.29, which refuses a project's name and `create_host_path`.

    It calls the project as the directory is called, and never makes the source of a mount.
    """
    engine = document["services"]["engine"]
    mounts = [{key: value for key, value in mount.items() if key != "bind"} for mount in engine["volumes"]]
    others = {key: value for key, value in document.items() if key != "name"}
    return {**others, "services": {"engine": {**engine, "volumes": mounts}}}


def _service(source: ExportSource) -> dict[str, Any]:
    plan, exported = source.plan, source.container
    service: dict[str, Any] = {
        "image": source.image_reference,
        "entrypoint": [_literal(word) for word in exported.command],
        "command": [],
        "environment": {name: _literal(text) for name, text in exported.environment.items()},
        "labels": dict(exported.labels),
        "user": exported.user,
        "read_only": exported.read_only,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "ipc": "private",
        "shm_size": exported.shared_memory,
        "mem_limit": exported.memory,
        "memswap_limit": exported.memory,  # of memory and swap together, so that nothing is swapped
        "pids_limit": exported.pids,
        "ulimits": dict(exported.ulimits),
        "ports": [f"{address}:{exported.port}:{CONTAINER_PORT}" for address in exported.addresses],
        "tmpfs": [
            f"{scratch.target}:{container.tmpfs_options(exported, scratch, 'Docker')}" for scratch in exported.scratch
        ],
        "volumes": [_bind(*bind) for bind in _binds(source)],
        "restart": "no" if source.restart is None else f"on-failure:{source.restart.attempts}",
        "stop_grace_period": f"{source.stop_timeout}s",
        "logging": {"driver": "json-file", "options": {"max-size": "50m", "max-file": "2"}},
        "healthcheck": {
            "test": ["CMD", *export.program(plan, "generation.py")],
            "interval": f"{export.CHECK_EVERY}s",
            "timeout": f"{export.PROBE_TIMEOUT}s",
            "start_period": f"{plan.limits.start_timeout}s",
            "retries": 3,
        },
    }
    if plan.access.key_file is not None:
        service["secrets"] = [{"source": _SECRET, "target": _SECRET}]
    if exported.gpus:
        devices = [{"driver": "nvidia", "device_ids": list(exported.gpus), "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return service


def _literal(text: str) -> str:
    """Return TEXT so that Compose, which replaces ``$NAME``, leaves it as it is."""
    return text.replace("$", "$$")


def _binds(source: ExportSource) -> list[tuple[str, str]]:
    plan = source.plan
    binds = [(f"./{mounted.RUN}", RUN_DIRECTORY), (f"./{mounted.PROGRAMS}", PROGRAMS_AT)]
    if plan.cache is not None:
        binds.append((f"./{mounted.CACHE}", plan.cache.target))
        binds += [(f"./{mounted.CACHE}", SEEDS)] if plan.cache.seeds else []
    binds += [(f"./{mounted.OWN}{path}", path) for path in sorted(mounted.own_files(plan))]
    return [*binds, *((mount.source, mount.target) for mount in mounted.model_mounts(plan))]


def _bind(source: str, target: str) -> dict[str, Any]:
    text = _literal(source)
    return {
        "type": "bind",
        "source": text,
        "target": target,
        "read_only": True,
        "bind": {"create_host_path": False},  # else an empty directory is made of a source that is missing, and mounted
    }
