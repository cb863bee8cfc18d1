"""The serve hash: everything that can change what the engine compiles or answers.

Unknown means included. What is left out is the short list below, each with the reason why it cannot matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.plan import ACCESS_ARGUMENTS, ACCESS_ENVIRONMENT, LaunchPlan, PlannedCpu, PlannedGpu, ServedModel

DOMAIN = "nvllm.serve/2"

EXCLUDED_ARGUMENTS = ("--served-model-name", "--host", "--port", "--shutdown-timeout")
"""Names and addresses of the front end, and how it ends; the model's own hash stands for the model."""

EXCLUDED_ENVIRONMENT = ("VLLM_LOGGING_LEVEL", "VLLM_FORCE_AOT_LOAD")
"""What is logged, not what is done; and that nothing but the blessed code is loaded, which a bootstrap, where
there is none yet, cannot ask for. The code is what was compiled under the same hash."""

EXCLUDED_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "schema": "the form of the plan; the hash has a version of its own",
        "serve_hash": "the hash itself",
        "instance": "a name on this host",
        "image": "a name; the build hash decides",
        "image_id": "the build hash decides it",
        "manifest_id": "the build hash decides it",
        "profile": "a name; what it says is in the other fields",
        "mounts": "places on this host; the tree hashes of the models stand for what is read there",
        "scratch": "follows from the limits",
        "user": "who the operator is",
        "port": "where the engine is reached",
        "served_name": "what requests call the model: the front end compares it, and the engine never gets it",
        "access": "who may ask and at which address; a request that may is answered as without a key",
        "host": "asked of the host before the start",
        "gpu": "asked of the host before the start; the GPUs that are taken are hashed",
        "probe": "asked of the engine after the start",
        "cache": "the manifest binds it to the hash: it is what was compiled for these factors",
    }
)
"""Of a plan, and why each cannot matter."""

COMPILE_DOMAIN = "nvllm.compile/1"

NOT_COMPILED: Mapping[str, str] = MappingProxyType(
    {
        "sentinels": "files of a mounted directory: a patch reads them where it runs, and nothing of that is compiled",
        "dev": "what the launcher allows; the engine never gets it",
    }
)
"""Factors of the serve hash that decide nothing of what is compiled, and why."""

_PROFILER = "--profiler-config"
"""An argument of which vLLM takes nothing into the key of its cache (``ProfilerConfig.compute_hash``): a trace loads
what was compiled without it."""

EXCLUDED_LIMITS = ("start_timeout", "stall_timeout", "drain_timeout", "open_files")
"""Of the limits: how long somebody waits, and how many connections an engine takes."""


def factors(plan: LaunchPlan) -> dict[str, Json]:
    """Return the factors of the serve hash of PLAN, as JSON. The hash that PLAN carries is not looked at.

    Adapters and a chat template are in it only if the plan has them: the hash of a plan without them never changed.
    """
    command, environment = _without(plan.command.words, EXCLUDED_ARGUMENTS), dict(plan.environment)
    if plan.access.key_file is not None:  # a blessing must not depend on whether a key is asked for
        if command[-len(ACCESS_ARGUMENTS) :] == [*ACCESS_ARGUMENTS]:
            command = command[: -len(ACCESS_ARGUMENTS)]
        environment = {name: text for name, text in environment.items() if name not in ACCESS_ENVIRONMENT}
    own: dict[str, Json] = {"adapters": [_model(adapter) for adapter in plan.adapters]} if plan.adapters else {}
    if plan.template is not None:
        own["template"] = {"path": plan.template.path, "sha256": plan.template.sha256}
    return {
        **own,
        "build_hash": plan.build_hash,
        "model": _model(plan.model),
        "draft": None if plan.draft is None else _model(plan.draft),
        "command": command,
        "environment": {name: text for name, text in environment.items() if name not in EXCLUDED_ENVIRONMENT},
        "sentinels": sorted(plan.sentinels),
        "gpus": [gpu(planned) for planned in plan.gpus],
        "cpu": cpu(plan.cpu),
        "waivers": sorted(waiver.name for waiver in plan.waivers),
        "limits": {name: size for name, size in asdict(plan.limits).items() if name not in EXCLUDED_LIMITS},
        "dev": plan.dev,
    }


def gpu(planned: PlannedGpu) -> Json:
    """Return the factors of a GPU; `hostclass.py` takes them too."""
    return {"name": planned.name, "capability": planned.capability, "driver": planned.driver}


def cpu(planned: PlannedCpu) -> Json:
    """Return the factors of the processors; `hostclass.py` takes them too."""
    return {**asdict(planned), "flags": list(planned.flags)}


def _model(model: ServedModel) -> Json:
    return {"tree": model.tree, "revision": model.revision, "path": model.path}


def serve_hash(plan: LaunchPlan) -> str:
    """Return the serve hash: hex sha256 of the canonical form of the factors of PLAN."""
    return canonical.digest(DOMAIN, factors(plan))


def compile_key(plan: LaunchPlan) -> str:
    """Return the compile key of PLAN, 64 hex digits: plans with the same one can load what one of them compiled.

    It covers every factor of the serve hash but those in `NOT_COMPILED` and the arguments of the profiler: the build
    hash with every patch, the hashes of the models, the engine's command and environment, GPUs, processor, waivers and
    limits. So it covers more than the key by which vLLM names its cache, and never less.
    """
    engine = plan.command.engine
    profiler = [word for word in engine if word.partition(".")[0] == _PROFILER]
    plan = replace(plan, command=replace(plan.command, engine=tuple(_without(engine, profiler))))
    compiled = {name: value for name, value in factors(plan).items() if name not in NOT_COMPILED}
    return canonical.digest(COMPILE_DOMAIN, compiled)


def _without(command: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """Return COMMAND without the EXCLUDED options and their values."""
    kept: list[str] = []
    arguments = iter(command)
    for argument in arguments:
        if argument in excluded:
            next(arguments, None)  # its value
        else:
            kept.append(argument)
    return kept
