"""A serve as a unit of systemd that runs `nvllm serve` itself, which holds everything that it holds in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvllm.export import export, texts
from nvllm.export.export import GUARANTEES, Export, ExportFile, ExportSource, Guarantee, kept, not_kept


@dataclass(frozen=True, slots=True)
class Service:
    """How the unit runs nvllm: COMMAND up to its subcommand, in ENVIRONMENT, as USER."""

    command: Sequence[str]
    environment: Mapping[str, str]
    user: str


_STOP_SLACK = 50
"""Seconds that nvllm may take for the rest of a stop."""

_EXCEPTIONS: Mapping[str, Guarantee] = {
    "ready": not_kept(
        "nvllm serve waits for one real generation, but systemd calls the unit started before it; see status"
    ),
}


def guarantees() -> Mapping[str, Guarantee]:
    """Return what of `export.GUARANTEES` the unit keeps."""
    return {name: _EXCEPTIONS.get(name, kept("nvllm serve")) for name in GUARANTEES}


def exported(source: ExportSource, service: Service) -> Export:
    """Return the export of SOURCE as SERVICE. There are no `export.refusals`."""
    plan, word = source.plan, texts.unit_word
    command = [*service.command, "serve", plan.image, "--profile", plan.profile]
    sections = {
        "Unit": [
            ("Description", f"vLLM: profile {plan.profile} of image {plan.image}"),
            ("Wants", "docker.service podman.socket"),
            ("After", "docker.service podman.socket"),
        ],
        "Service": [
            ("Type", "exec"),
            ("User", service.user),
            *(("Environment", word(f"{name}={text}")) for name, text in service.environment.items()),
            ("ExecStart", " ".join(texts.command_word(part) for part in command)),
            ("KillMode", "mixed"),  # SIGTERM to nvllm alone, which ends its engine; SIGKILL to all that is left
            ("TimeoutStopSec", str(source.stop_timeout + _STOP_SLACK)),
            ("SuccessExitStatus", "143"),  # how nvllm ends after SIGTERM
            # nvllm itself starts an engine again; what systemd starts again is an nvllm that was killed.
            ("Restart", "no" if source.restart is None else "on-abnormal"),
        ],
        "Install": [("WantedBy", "multi-user.target")],
    }
    guaranteed = guarantees()
    text = export.remarks(source, guaranteed) + texts.unit(sections)
    return Export((ExportFile(f"{plan.instance}.service", text.encode()),), guaranteed)
