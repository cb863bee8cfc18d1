"""A serve as a project of Docker Compose: ``compose.yaml``, and beside it everything that the container mounts.

The directory holds a copy of the blessed cache, so that it can be carried to another host. The gate hashes that copy
through its mount at each start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from nvllm.core.plan import CONTAINER_PORT, KEY_FILE, RUN_DIRECTORY, SEEDS, ulimits
from nvllm.engine import engine
from nvllm.export import export
from nvllm.export.export import PROGRAMS_AT, Export, ExportFile, ExportSource, Held, held, lost

FILE = "compose.yaml"

_SECRET = PurePosixPath(KEY_FILE).name
"""Compose mounts a secret of this name where the engine looks for the key."""


def guarantees(source: ExportSource) -> Mapping[str, Held]:
    """Return what of `export.GUARANTEES` the project of SOURCE keeps."""
    return {
        "image": held("by digest"),
        "cache": held("the gate"),
        "blessing": lost("checked when it was exported; export again after a revocation"),
        "model": held("the gate, and machine.py for files above 64 MiB"),
        "processor": held("machine.py, before the gate"),
        "gpu": held("machine.py asks nvidia-smi, before the gate"),
        "gpu-uuid": held("device_ids"),
        "gpu-alone": lost("Compose takes no locks; nvllm on this host does not know of it"),
        "memory": held("mem_limit equal to memswap_limit"),
        "memory-available": held("machine.py"),
        "pids": held(f"pids_limit {source.plan.limits.pids}"),
        "ulimits": held("ulimits"),
        "shm": held("shm_size"),
        "scratch": held("tmpfs with size, mode and owner"),
        "hardening": held("read_only, cap_drop, no-new-privileges; the gate reads it in /proc"),
        "seccomp": held("the engine's default profile; the gate reads it in /proc"),
        "secrets": held("none is in the plan"),
        "environment": held("the gate"),
        "address": held(f"published on {', '.join(source.plan.addresses)}"),
        "key": export.key(source.plan, "Compose mounts its file as a secret"),
        "ready": held("healthcheck by one real generation: docker compose up --wait"),
        "blessed-start": lost("nobody reads the log; loading is forced, and nothing can be saved in the cache"),
        "start-timeout": lost("the container becomes unhealthy, and is not ended"),
        "stall-timeout": lost("nobody watches the metrics"),
        "restart": _restart(source),
        "drain": held("stop_grace_period"),
        "log": held("json-file, two files of 50 MB"),
    }


def _restart(source: ExportSource) -> Held:
    rules = source.restart
    if rules is None:
        return held("restart: no")
    return lost(
        f"restart: on-failure:{rules.attempts} starts one again that exits; machine.py and the gate check each start. "
        f"Docker has pauses of its own and no time of {rules.within} s, an engine that hangs does not exit, and nobody "
        "looks for a revocation"
    )


def exported(source: ExportSource) -> Export:
    """Return the export of SOURCE. There are no `export.refusals`."""
    kept = guarantees(source)
    document = {"name": source.plan.instance.lower(), "services": {"engine": _service(source)}}
    if source.plan.access.key_file is not None:
        document["secrets"] = {_SECRET: {"file": _literal(source.plan.access.key_file)}}
    text = export.remarks(source, kept) + export.yaml_documents([document])
    files = (ExportFile(FILE, text.encode()), *export.mounted_files(source))
    return Export(files, kept, copies_cache=source.tree is not None)


def _service(source: ExportSource) -> dict[str, Any]:
    plan = source.plan
    service: dict[str, Any] = {
        "image": source.image_reference,
        "entrypoint": [_literal(word) for word in export.command(plan)],
        "command": [],
        "environment": {name: _literal(text) for name, text in plan.environment.items()},
        "labels": export.labels(plan),
        "user": plan.user,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "ipc": "private",
        "shm_size": plan.limits.shared_memory,
        "mem_limit": plan.limits.memory,
        "memswap_limit": plan.limits.memory,
        "pids_limit": plan.limits.pids,
        "ulimits": dict(ulimits(plan)),
        "ports": [f"{address}:{plan.port}:{CONTAINER_PORT}" for address in plan.addresses],
        "tmpfs": [f"{one.target}:{engine.tmpfs(plan, one.size, 'Docker')}" for one in plan.scratch],
        "volumes": [_bind(*one) for one in _binds(source)],
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
    if plan.gpus:
        devices = [{"driver": "nvidia", "device_ids": [gpu.uuid for gpu in plan.gpus], "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return service


def _literal(text: str) -> str:
    """Return TEXT so that Compose, which replaces ``$NAME``, leaves it as it is."""
    return text.replace("$", "$$")


def _binds(source: ExportSource) -> list[tuple[str, str]]:
    plan = source.plan
    binds = [(f"./{export.RUN}", RUN_DIRECTORY), (f"./{export.PROGRAMS}", PROGRAMS_AT)]
    if plan.cache is not None:
        binds.append((f"./{export.CACHE}", plan.cache.target))
        binds += [(f"./{export.CACHE}", SEEDS)] if plan.cache.seeds else []
    binds += [(f"./{export.OWN}{path}", path) for path in sorted(export.own_files(plan))]
    return [*binds, *((one.source, one.target) for one in export.model_mounts(plan))]


def _bind(source: str, target: str) -> dict[str, Any]:
    text = _literal(source)
    return {
        "type": "bind",
        "source": text,
        "target": target,
        "read_only": True,
        "bind": {"create_host_path": False},
    }
