"""The serve hash: everything that can change what the engine compiles or answers.

Unknown means included. What is left out is the short list below, each with the reason why it cannot matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nvllm import canonical
from nvllm.canonical import Json
from nvllm.host import Gpu
from nvllm.plan import ServedModel
from nvllm.spec import Profile

DOMAIN = "nvllm.serve/1"

EXCLUDED_ARGUMENTS = ("--served-model-name", "--host", "--port")
"""Names and addresses of the front end; the model's own hash stands for the model."""

EXCLUDED_ENVIRONMENT = ("VLLM_LOGGING_LEVEL",)
"""What is logged, not what is done."""

EXCLUDED_FIELDS = ("description", "port", "probe", "host", "limits.start_timeout")
"""Of a profile: texts, where it is published, and what is asked of the host before or after the start."""


def factors(
    *,
    build_hash: str,
    model: ServedModel,
    command: Sequence[str],
    environment: Mapping[str, str],
    profile: Profile,
    gpus: Sequence[Gpu],
) -> dict[str, Json]:
    """Return the factors of the serve hash, as JSON."""
    return {
        "build_hash": build_hash,
        "model": {"tree": model.tree, "revision": model.revision, "path": model.path},
        "command": _without(command, EXCLUDED_ARGUMENTS),
        "environment": {name: value for name, value in environment.items() if name not in EXCLUDED_ENVIRONMENT},
        "sentinels": sorted(profile.sentinels),
        "gpus": [{"name": gpu.name, "capability": gpu.capability, "driver": gpu.driver} for gpu in gpus]
        if profile.gpu
        else [],
        "waivers": sorted(waiver.name for waiver in profile.waivers),
        "limits": {
            "memory": profile.limits.memory,
            "shared_memory": profile.limits.shared_memory,
            "temporary": profile.limits.temporary,
            "pids": profile.limits.pids,
        },
        "dev": profile.dev,
    }


def serve_hash(factors: Mapping[str, Json]) -> str:
    """Return the serve hash: hex sha256 of the canonical form of FACTORS."""
    return canonical.digest(DOMAIN, factors)


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
