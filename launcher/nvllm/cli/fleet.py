"""`nvllm worker` and `nvllm fleet`: trials on other machines."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import BinaryIO

import click

from nvllm.cli.frame import App, Command, Group, with_app
from nvllm.core import extras
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.engine import engine
from nvllm.fleet import credentials, machines, registry, tasks, worker
from nvllm.fleet.machines import Carrier, MachineStatus
from nvllm.fleet.registry import Repository
from nvllm.fleet.tasks import StatusAnswer

WORKER_EXAMPLES = """
Examples:
  nvllm worker < task.json                          one task, one answer
  ssh HOST nvllm worker < task.json                 the same on another machine; with Slurm: docs/fleet.md
"""

FLEET_EXAMPLES = """
Examples:
  nvllm fleet status --on ray://HOST                what every machine is, holds and runs
"""


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of STREAM. One that is too long comes as its beginning, which is too long for a task."""
    while line := stream.readline(tasks.MOST_LINE + 1):
        yield line
        while line and not line.endswith(b"\n") and len(line) > tasks.MOST_LINE:
            line = stream.readline(tasks.MOST_LINE + 1)


def repository(app: App, named: str) -> Repository:
    """Return the repository NAMED, which no digest follows. Raises Refused NV108 for another name."""
    name, digest = registry.parse(named)
    if digest is not None:
        raise refuse("NV108", "--registry", "a repository without a digest", named, f"--registry {name}")
    if app.offline:
        raise refuse("NV108", "--offline", "a command that needs no network", named, "run it without --offline")
    return Repository(name, credentials.find(name.host, os.environ), app.progress)


@click.command("worker", cls=Command, epilog=WORKER_EXAMPLES)
@with_app
def worker_command(app: App) -> None:
    """It computes the class of this host itself, pulls the image by digest, takes the locks, and runs the trial.

    A line that is no task is answered with its refusals. Containers of tasks that ended badly here are removed at the
    start and at the end. The end of the input ends it.
    """

    def opened(name: str) -> Repository:
        return repository(app, name)

    found = worker.Worker(app.project, app.places, engine.connect, opened, app.progress)
    try:
        for line in lines(sys.stdin.buffer):
            if line.strip():
                app.out.line(tasks.answer_line(found.answer(line)).decode())
    finally:
        found.end()


@click.group("fleet", cls=Group, epilog=FLEET_EXAMPLES)
def fleet() -> None:
    """Other machines: those of a Ray cluster, which carries tasks to `nvllm worker` there."""


ON = click.option("--on", "address", metavar="ray://HOST", help="The head of a Ray cluster; its port is 10001.")


@fleet.command("status")
@ON
@with_app
def status_command(app: App, address: str | None) -> None:
    """Show what each machine is, holds and runs: class, images, locks, and containers of tasks whose worker is gone."""
    if address is None:
        cure = "name it: nvllm fleet status --on ray://HOST"
        raise refuse("NV108", "nvllm fleet status", "the head of a Ray cluster, after --on", "no --on", cure)
    with connected(app, address) as cluster:
        found = machines.status(cluster)
    rows = [
        (one.node.name, one.answer.host, str(len(one.answer.images)), ", ".join(one.answer.locks) or "all free",
         ", ".join(one.answer.orphans) or "none", f"{one.node.store / 1e6:.0f} MB", one.answer.monitor)
        if isinstance(one.answer, StatusAnswer)
        else (one.node.name, one.node.label or "unknown", "-", "-", one.answer, "-", "-")
        for one in found
    ]  # fmt: skip
    data: list[Json] = [_shown(one) for one in found]
    names = ["machine", "class", "images", "locks held", "orphans", "object store", "memory monitor"]
    app.out.result("fleet status", {"machines": data}, lambda: app.out.table(names, rows))


def _shown(one: MachineStatus) -> dict[str, Json]:
    own: dict[str, Json] = {
        "machine": one.node.name,
        "label": one.node.label,
        "object_store_bytes": one.node.store,
    }
    answer = one.answer
    if isinstance(answer, str):
        return {**own, "problem": answer}
    told = asdict(answer)
    listed: dict[str, Json] = {name: list(told[name]) for name in ("images", "locks", "orphans")}
    own |= {"unified_memory": answer.unified, "memory_monitor": answer.monitor}
    return {**own, "class": answer.host, **listed}


@contextlib.contextmanager
def connected(app: App, address: str) -> Iterator[Carrier]:
    """Connect to the cluster at ADDRESS. Raises Refused NV512 without Ray, NV108 for another address, NV346 if none."""
    if app.offline:
        raise refuse("NV108", "--offline", "a command that needs no network", address, "run it without --offline")
    refuse_any(_lacking(address))
    from nvllm.fleet import cluster

    with cluster.connected(address) as carrier:
        yield carrier


def _lacking(address: str) -> Iterator[Refusal]:
    """Yield what this host lacks to connect to the cluster at ADDRESS: tokens that count, a token, Ray."""
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode != "token":
        cure = "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/.ray/auth_token"
        yield Refusal(
            "NV346", address, "RAY_AUTH_MODE=token, here and on every machine", mode or "no RAY_AUTH_MODE", cure
        )
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if not os.environ.get("RAY_AUTH_TOKEN") and not token.is_file():
        host = address.removeprefix("ray://").partition(":")[0]
        expected = f"the token of the cluster; `ray get-auth-token --generate` made it on {host}"
        cure = f"mkdir -p {shlex.quote(str(token.parent))} && scp {host}:.ray/auth_token {shlex.quote(str(token))}"
        yield Refusal("NV346", address, expected, f"no file {token}", cure)
    if util.find_spec("ray") is None:
        where, expected = f"nvllm --on {address}", "the Python package ray"
        yield Refusal("NV512", where, expected, "not installed", extras.installing("ray"))
