"""`nvllm dev serve`: an engine on the files of a work tree, as they stand."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path

import click

from nvllm.cli import dev_tree
from nvllm.cli.build import fresh_build
from nvllm.cli.complete import profiles
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.core.canonical import Json
from nvllm.engine import engine
from nvllm.engine.engine import Engine
from nvllm.image import presence
from nvllm.image.builder import ImageBuilder
from nvllm.image.development import DevelopmentBuilder
from nvllm.image.identity import Build
from nvllm.port import devrecord
from nvllm.port.overlay import TreeDifference
from nvllm.serve import fresh
from nvllm.serve.examination import Depth
from nvllm.serve.fresh import FreshInstances
from nvllm.serve.health import Generation
from nvllm.serve.supervisor import Supervisor
from nvllm.spec import specfile

EXAMPLES = """
Examples:
  nvllm dev serve vllm-cpu --profile tiny-eager       what stands in vllm-cpu, committed or not, until Ctrl-C
  nvllm stop nvllm-cpu-tiny-eager-dev-...             from another shell; `nvllm status` lists it as (development)
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
    record = devrecord.read(directory)
    spec = specfile.of(app.project, record.image)
    specfile.named_profile(app.project, spec, profile)
    build = fresh_build(app, record.image, None)
    dev_tree.same_origin(app, directory, record, spec.patches.series, build.lock.vllm.source.sha256)
    ImageBuilder(app.project, app.places, app.progress, offline=app.offline).fetched(
        build, [build.lock.vllm_wheel.file]
    )
    changed = dev_tree.difference(app, directory, record, build)
    docker = engine.require()
    app.remember_project()
    build = replace(build, development=changed.digest)
    build = fresh.with_profile(build, profile, replace(build.spec.profiles[profile], dev=True))
    _ensure_image(app, build, changed, docker)
    command = shlex.join(["nvllm", "dev", "serve", str(directory), "--profile", profile])
    instances = FreshInstances(app.project, app.places, docker, "dev", command)
    with instances.examined(build, profile, Depth.UNBLESSED) as (examination, held_locks):
        running = Supervisor(examination, app.places, held_locks, app.progress)
        prepared = time.monotonic() - began
        running.serve(lambda generation: _announce(app, directory, changed, running, generation, prepared))


def _ensure_image(app: App, build: Build, changed: TreeDifference, docker: Engine) -> None:
    """Make the image of BUILD, with the files CHANGED, where DOCKER does not hold it."""
    if presence.recorded(build, app.project, app.places, docker, build.tags) is None:
        builder = DevelopmentBuilder(app.project, app.places, app.progress, changed.patched, offline=app.offline)
        builder.into_engine(build, docker, build.tags)


def _announce(
    app: App,
    directory: Path,
    changed: TreeDifference,
    running: Supervisor,
    generation: Generation,
    prepared: float,
) -> None:
    """Say that RUNNING is ready, PREPARED seconds after the start of the command and those of the engine."""
    plan = running.plan
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
    first = f"{generation.tokens} tokens in {generation.seconds:.2f} s"
    over = f"{len(changed.paths)} files of {directory} over the image {plan.image}, made in {prepared:.1f} s"
    lines = [
        f"ready: {plan.instance}  (development) at {address}; {first}",
        f"dev {changed.digest[:12]}: {over}",
        *(f"  {path}" for path in changed.paths),
        *(f"not in the image: {path}" for path in changed.beside),
    ]
    app.out.result("dev serve", data, "\n".join(lines))
