"""What an exported container reads: programs, what they are told, the files of the plan, and the model's files."""

from __future__ import annotations

from pathlib import Path

from nvllm import runtime
from nvllm.core import canonical, reading
from nvllm.core.canonical import Json
from nvllm.core.plan import ACCESS, ACCESS_PROGRAM, CONTAINER_PORT, KEY_FILE, LaunchPlan, Mount
from nvllm.export.export import ExportFile, ExportSource
from nvllm.runtime import gate
from nvllm.serve import access, planner

_PROGRAMS = ("generation.py", "machine.py", "placing.py")


def programs(source: ExportSource) -> dict[str, bytes]:
    """Return the files of `PROGRAMS_AT`."""
    plan, directory, layout = source.plan, Path(runtime.__file__).parent, source.plan.cpu.layout
    cpu: Json = {
        "machine": plan.cpu.machine,
        "kind": plan.cpu.kind,
        "flags": list(plan.cpu.flags),
        "layout": None if layout is None else {"count": layout.count, "cores": layout.cores, "nodes": layout.nodes},
    }
    machine: Json = {
        "schema": "nvllm.export/1",
        "cpu": cpu,
        "gpus": [{"name": gpu.name, "capability": gpu.capability, "driver": gpu.driver} for gpu in plan.gpus],
        "memory_available": plan.host.memory_available,
        "probe": {
            "model": plan.request_name,
            "prompt": plan.probe.prompt,
            "max_tokens": plan.probe.max_tokens,
            "port": CONTAINER_PORT,
            **({} if plan.access.key_file is None else {"key_file": KEY_FILE}),
        },
    }
    return {
        **{name: reading.content(directory / name, reading.CONFIGURATION) for name in _PROGRAMS},
        "machine.json": canonical.encode(machine),
        "launch.json": planner.expectations(plan, source.models, source.tree),
    }


def own_files(plan: LaunchPlan) -> dict[str, bytes]:
    """Return the files of PLAN that are neither a model nor a program of the export, by their paths in the container.

    They are the chat template and what asks for the API key. The key is none of them.
    """
    files: dict[str, bytes] = {}
    if plan.template is not None:
        source = next(mount.source for mount in plan.mounts if mount.target == plan.template.path)
        files[plan.template.path] = reading.content(Path(source), reading.CONFIGURATION)
    if plan.access.key_file is not None:
        files[f"{ACCESS}/{ACCESS_PROGRAM}"] = access.program()
    return files


RUN, PROGRAMS, CACHE, OWN = "run", "programs", "cache", "own"
"""The directories of an export that lies on a host: what is mounted at /run/nvllm, at `PROGRAMS_AT`, the cache, and
`own_files`."""


def mounted_files(source: ExportSource) -> list[ExportFile]:
    """Return the files of `RUN` and `PROGRAMS`."""
    written = programs(source)
    run = {gate.EXPECTATIONS: written[gate.EXPECTATIONS], **dict.fromkeys(source.plan.sentinels, b"")}
    return [
        *(ExportFile(f"{RUN}/{name}", data) for name, data in sorted(run.items())),
        *(ExportFile(f"{PROGRAMS}/{name}", data) for name, data in sorted(written.items())),
        *(ExportFile(f"{OWN}{path}", data) for path, data in sorted(own_files(source.plan).items())),
    ]


def model_mounts(plan: LaunchPlan) -> list[Mount]:
    """Return the mounts of PLAN that are files of its models, where this host has them."""
    return [mount for mount in plan.mounts if any(mount.target.startswith(f"{model.path}/") for model in plan.models)]
