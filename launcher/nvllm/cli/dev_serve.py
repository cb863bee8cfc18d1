"""`nvllm dev serve`: an engine on the files of a work tree, as they stand."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

from nvllm.cli import dev_tree
from nvllm.cli.complete import profiles
from nvllm.cli.dev_tree import Development
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.core.canonical import Json
from nvllm.engine import engine
from nvllm.serve.examination import Depth
from nvllm.serve.fresh import FreshInstances
from nvllm.serve.health import Generation
from nvllm.serve.supervisor import Supervisor

EXAMPLES = """
Examples:
  nvllm dev serve vllm-cpu --profile tiny-eager    what stands in vllm-cpu, committed or not, until Ctrl-C
  nvllm stop                                       from another shell, if it is the only instance
"""


@click.command("serve", cls=Command, epilog=EXAMPLES)
@click.argument("directory", type=PATH, metavar="DIR", help="A work tree that `nvllm dev start` made.")
@click.option("--profile", required=True, shell_complete=profiles, help="A profile of the image.")
@with_app
def serve(app: App, directory: Path, profile: str) -> None:
    """Serve the files of DIR as they stand, on a free port of 127.0.0.1, until Ctrl-C or `nvllm stop`.

    Python files of vLLM that differ from the image's become one layer over it. Compiled files, and those that the wheel
    lacks, are refused. The engine is marked as a development one, with the digest of the difference. Nothing of it can
    be blessed or pushed: write the commits back with `nvllm dev finish`, and build.
    """
    began = time.monotonic()
    made = dev_tree.development(app, directory, profile)
    docker = engine.require()
    app.remember_project()
    dev_tree.ensure_image(app, made, docker)
    command = shlex.join(["nvllm", "dev", "serve", str(directory), "--profile", profile])
    instances = FreshInstances(app.project, app.places, docker, "dev", command)
    with instances.examined(made.build, profile, Depth.UNBLESSED) as (examination, held_locks):
        running = Supervisor(examination, app.places, held_locks, app.progress)
        prepared = time.monotonic() - began
        running.serve(lambda generation: _announce(app, made, running, generation, prepared))


def _announce(app: App, made: Development, running: Supervisor, generation: Generation, prepared: float) -> None:
    """Say that RUNNING is ready; it took PREPARED seconds until its container could be started."""
    plan, changed = running.plan, made.changed
    data: Json = {
        "instance": plan.instance,
        "image": plan.image,
        "profile": plan.profile,
        "address": f"http://127.0.0.1:{plan.port}",
        "model": plan.request_name,
        "dev": plan.dev,
        "difference": changed.digest,
        "files": list(changed.paths),
        "beside": list(changed.beside),
        "build_hash": plan.build_hash,
        "serve_hash": plan.serve_hash,
        "prepared": round(prepared, 3),
    }
    address = f"http://127.0.0.1:{plan.port}, model {plan.request_name}"
    lines = [
        f"ready: {plan.instance}  (development) at {address}; {generation.tokens} tokens in {generation.seconds:.2f} s",
        f"{made.summary}, made in {prepared:.1f} s",
        *(f"  {path}" for path in changed.paths),
        *(f"not in the image: {path}" for path in changed.beside),
    ]
    app.out.result("dev serve", data, "\n".join(lines))
