"""The serve hash: everything that can change what the engine compiles or answers.

Unknown means included. What is left out is the short list below, each with the reason why it cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvllm import canonical
from nvllm.canonical import Json
from nvllm.plan import LaunchPlan

DOMAIN = "nvllm.serve/1"

EXCLUDED_ARGUMENTS = ("--served-model-name", "--host", "--port")
"""Names and addresses of the front end; the model's own hash stands for the model."""

EXCLUDED_ENVIRONMENT = ("VLLM_LOGGING_LEVEL",)
"""What is logged, not what is done."""

EXCLUDED_FIELDS = ("instance", "image_id", "mounts", "scratch", "user", "port", "host", "probe", "start_timeout")
"""Of a plan: names and places on this host, what is asked of it before or after the start, and what other
factors decide already (the build hash decides the image id)."""


def factors(plan: LaunchPlan) -> dict[str, Json]:
    """Return the factors of the serve hash of PLAN, as JSON. The hash that PLAN carries is not looked at."""
    return {
        "build_hash": plan.build_hash,
        "model": {"tree": plan.model.tree, "revision": plan.model.revision, "path": plan.model.path},
        "command": _without(plan.command, EXCLUDED_ARGUMENTS),
        "environment": {name: text for name, text in plan.environment.items() if name not in EXCLUDED_ENVIRONMENT},
        "sentinels": sorted(plan.sentinels),
        "gpus": [{"name": gpu.name, "capability": gpu.capability, "driver": gpu.driver} for gpu in plan.gpus],
        "waivers": sorted(waiver.name for waiver in plan.waivers),
        "limits": {
            "memory": plan.limits.memory,
            "shared_memory": plan.limits.shared_memory,
            "temporary": plan.limits.temporary,
            "pids": plan.limits.pids,
        },
        "dev": plan.dev,
    }


def serve_hash(plan: LaunchPlan) -> str:
    """Return the serve hash: hex sha256 of the canonical form of the factors of PLAN."""
    return canonical.digest(DOMAIN, factors(plan))


def _without(command: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """Return COMMAND without the EXCLUDED options and their values."""
    kept: list[str] = []
    skip = False
    for argument in command:
        if skip:
            skip = False
        elif argument in excluded:
            skip = True
        else:
            kept.append(argument)
    return kept
