"""`nvllm dev serve`: an engine on the files of a work tree, as they stand."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import click

from nvllm.cli import dev_tree, terminal
from nvllm.cli.complete import profiles
from nvllm.cli.dev_tree import Development
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refused
from nvllm.engine import engine
from nvllm.port import devrecord
from nvllm.serve import fresh
from nvllm.serve.examination import Depth
from nvllm.serve.fresh import FreshInstances
from nvllm.serve.health import Generation
from nvllm.serve.rundir import RunDirectory
from nvllm.serve.supervisor import Supervisor
from nvllm.sources.saves import Saves
from nvllm.sources.worktree import WorkTree

EXAMPLES = """
Examples:
  nvllm dev serve vllm-cpu --profile tiny-eager    what stands in vllm-cpu, committed or not, until Ctrl-C
  nvllm dev serve vllm-cpu --profile tiny-eager --watch    anew at each save
  nvllm stop                                       from another shell, if it is the only instance
"""


Watching: TypeAlias = AbstractContextManager[None]


@click.command("serve", cls=Command, epilog=EXAMPLES)
@click.argument("directory", type=PATH, metavar="DIR", help="A work tree that `nvllm dev start` made.")
@click.option("--profile", required=True, shell_complete=profiles, help="A profile of the image.")
@click.option("--watch", is_flag=True, help="Serve anew at each save, on the same port.")
@with_app
def serve(app: App, directory: Path, profile: str, watch: bool) -> None:
    """Serve the files of DIR as they stand, on a free port of 127.0.0.1, until Ctrl-C or `nvllm stop`.

    Python files of vLLM that differ from the image's become one layer over it. Compiled files, and those that the wheel
    lacks, are refused. The engine is marked as a development one, with the digest of the difference. Nothing of it can
    be blessed or pushed: write the commits back with `nvllm dev finish`, and build.
    """
    address = Address(app, directory, profile, fresh.free_port())
    if watch:
        _at_each_save(address)
    else:
        _serve(address, lambda run: nullcontext())


@dataclass(frozen=True, slots=True)
class Address:
    """What is served, and where: PROFILE of the work tree in DIRECTORY, on PORT."""

    app: App
    directory: Path
    profile: str
    port: int


def _at_each_save(address: Address) -> None:
    """Serve what stands at ADDRESS, and anew after each save. Raises Refused for a tree that cannot be served now."""
    dev_tree.development(address.app, address.directory, address.profile)
    saves = Saves(WorkTree(address.directory), devrecord.read(address.directory).base)
    while _until_saved(address, saves):
        address.app.progress.note(f"saved: serving {address.directory} anew")


def _until_saved(address: Address, saves: Saves) -> bool:
    """Serve what stands at ADDRESS, and return whether one of SAVES has ended it: not if `nvllm stop` has.

    A refusal is shown, and the next save is waited for: the edit may be its cause.
    """
    # Before the files are read: what is saved from here on is served anew.
    before, runs = saves.state(), list[RunDirectory]()
    saves.saved = False

    def watching(run: RunDirectory) -> Watching:
        runs.append(run)
        return saves.watching(before, run.ask_to_stop)

    try:
        _serve(address, watching)
    except Refused as refused:
        if saves.saved:
            return True
        if any(run.asked_to_stop for run in runs):
            raise
        terminal.print_refusals(refused.refusals, color=address.app.stderr_color)
        address.app.progress.note(f"waiting for a save in {address.directory}")
        saves.wait(before)
        return True
    return saves.saved


def _serve(address: Address, watching: Callable[[RunDirectory], Watching]) -> None:
    """Serve what stands at ADDRESS within the context that WATCHING gives for its run directory."""
    began, app = time.monotonic(), address.app
    made = dev_tree.development(app, address.directory, address.profile)
    docker = engine.require()
    app.remember_project()
    dev_tree.ensure_image(app, made, docker)
    command = shlex.join(["nvllm", "dev", "serve", str(address.directory), "--profile", address.profile])
    instances = FreshInstances(app.project, app.places, docker, "dev", command)
    with instances.examined(made.build, address.profile, Depth.UNBLESSED, address.port) as (examination, held_locks):
        running = Supervisor(examination, app.places, held_locks, app.progress)
        prepared = time.monotonic() - began
        with watching(running.run):
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
