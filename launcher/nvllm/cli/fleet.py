"""`nvllm worker` and `nvllm fleet`: trials on other machines."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import BinaryIO

import click

from nvllm import __version__
from nvllm.cli.frame import App, Command, Group, with_app
from nvllm.core import extras
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.engine import engine
from nvllm.fleet import credentials, machines, registry, ssh, tasks, worker
from nvllm.fleet.machines import Carrier, MachineStatus
from nvllm.fleet.pipe import DriverPipe
from nvllm.fleet.registry import Repository, RepositoryName
from nvllm.fleet.tasks import HelloAnswer, StatusAnswer

WORKER_EXAMPLES = """
Examples:
  nvllm worker < task.json                          one task, one answer
  ssh HOST nvllm worker < task.json                 the same on another machine; with Slurm: docs/fleet.md
  ssh HOST nvllm worker --pipe                      what --on ssh://HOST starts
"""

FLEET_EXAMPLES = """
Examples:
  nvllm fleet status --on ray://HOST                what every machine is, holds and runs
  nvllm fleet status --on ssh://HOST,ssh://HOST2    the same without a cluster
"""


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of STREAM. One that is too long comes as its beginning, which is too long for a task."""
    while line := stream.readline(tasks.MOST_LINE + 1):
        yield line
        while line and not line.endswith(b"\n") and len(line) > tasks.MOST_LINE:
            line = stream.readline(tasks.MOST_LINE + 1)


def repository_name(named: str) -> RepositoryName:
    """Return the name of the repository NAMED by --registry. Raises Refused NV108 for no name, or one with a digest."""
    name, digest = registry.parse(named)
    if digest is not None:
        raise refuse("NV108", "--registry", "a repository without a digest", named, f"--registry {name}")
    return name


def opened(app: App, name: RepositoryName) -> Repository:
    """Return the repository NAME, with the user's credentials for it. Raises Refused NV108 with --offline."""
    app.need_network(str(name))
    return Repository(name, credentials.find(name.host, os.environ), app.progress)


def repository(app: App, named: str) -> Repository:
    """Return the repository NAMED by --registry. Raises what `repository_name` and `opened` raise."""
    return opened(app, repository_name(named))


@click.command("worker", cls=Command, epilog=WORKER_EXAMPLES)
@click.option("--pipe", "piped", is_flag=True, help="Say hello first, and end with the driver at the other end.")
@with_app
def worker_command(app: App, piped: bool) -> None:
    """It computes the class of this host itself, pulls the image by digest, takes the locks, and runs the trial.

    A line that is no task is answered with its refusals. Containers of tasks that ended badly here are removed at the
    start and at the end. The end of the input ends it; with --pipe, also in the middle of a task.
    """
    brought = functools.partial(repository, app)
    this_worker = worker.Worker(app.project, app.places, engine.connect, brought, app.progress)
    try:
        if piped:
            _serve_driver(app, this_worker)
            return
        for line in lines(sys.stdin.buffer):
            if line.strip():
                app.out.line(tasks.answer_line(this_worker.answer(line)).decode())
    finally:
        this_worker.end()


def _serve_driver(app: App, this_worker: worker.Worker) -> None:
    """Carry out with THIS_WORKER what the driver at the other end of stdin and stdout sends, until it is gone."""
    app.out.line(tasks.answer_line(HelloAnswer(__version__, this_worker.host)).decode())
    driver = DriverPipe(sys.stdin.fileno(), app.out.line)
    for line in driver.lines():
        driver.answer(tasks.answer_line(this_worker.answer(line)).decode())


@click.group("fleet", cls=Group, epilog=FLEET_EXAMPLES)
def fleet() -> None:
    """Other machines: those of a Ray cluster, or hosts that ssh reaches, with `nvllm worker` on each."""


def _split(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return each address once, in the order GIVEN; several may stand in one word, between commas."""
    return tuple(dict.fromkeys(address for word in given for address in word.split(",") if address))


ON = click.option(
    "--on",
    "addresses",
    multiple=True,
    callback=_split,
    metavar="ADDRESS",
    help="ray://HOST, the head of a Ray cluster; or ssh://HOST or ssh://HOST/DIRECTORY, of each machine.",
)


def check_registry(addresses: Sequence[str], registry: str | None) -> None:
    """Raise click.UsageError for ADDRESSES of --on without a REGISTRY, or one without them."""
    if bool(addresses) != (registry is not None):
        raise click.UsageError("--on and --registry go together: machines pull what they try")


@fleet.command("status")
@ON
@with_app
def status_command(app: App, addresses: tuple[str, ...]) -> None:
    """Show what each machine is, holds and runs: class, images, locks, and containers of tasks whose worker is gone."""
    if not addresses:
        cure = "name ray://HOST or ssh://HOST: nvllm fleet status --on ADDRESS"
        raise refuse("NV108", "nvllm fleet status", "the head of a Ray cluster, after --on", "no --on", cure)
    with reached(app, addresses) as carrier:
        statuses = machines.status(carrier)
    rows = [
        (status.node.name, status.answer.host, str(len(status.answer.images)),
         ", ".join(status.answer.locks) or "all free", ", ".join(status.answer.orphans) or "none",
         f"{status.node.store / 1e6:.0f} MB", status.answer.monitor)
        if isinstance(status.answer, StatusAnswer)
        else (status.node.name, status.node.label or "unknown", "-", "-", status.answer, "-", "-")
        for status in statuses
    ]  # fmt: skip
    data: list[Json] = [_machine_document(status) for status in statuses]
    names = ["machine", "class", "images", "locks held", "orphans", "object store", "memory monitor"]
    app.out.result("fleet status", {"machines": data}, lambda: app.out.table(names, rows))


def _machine_document(status: MachineStatus) -> dict[str, Json]:
    own: dict[str, Json] = {
        "machine": status.node.name,
        "label": status.node.label,
        "object_store_bytes": status.node.store,
    }
    answer = status.answer
    if isinstance(answer, str):
        return {**own, "problem": answer}
    fields = asdict(answer)
    listed: dict[str, Json] = {name: list(fields[name]) for name in ("images", "locks", "orphans")}
    own |= {"unified_memory": answer.unified, "memory_monitor": answer.monitor}
    return {**own, "class": answer.host, **listed}


@contextlib.contextmanager
def connected(app: App, addresses: Sequence[str]) -> Iterator[Carrier]:
    """Connect as `reached` does, to machines that all take tasks. Raises Refused NV923 with those that do not."""
    with reached(app, addresses) as carrier:
        carrier.greet()
        yield carrier


@contextlib.contextmanager
def reached(app: App, addresses: Sequence[str]) -> Iterator[Carrier]:
    """Connect to the cluster or the hosts at ADDRESSES.

    Raises Refused NV108 for an address of another form, NV512 without Ray or ssh, and NV346 if no cluster answers.
    """
    app.need_network(", ".join(addresses))
    if any(address.startswith("ssh://") for address in addresses):
        yield ssh.SshMachines([ssh.host(address) for address in addresses], app.progress)
        return
    if len(addresses) > 1:
        expected = "one head of a Ray cluster, or hosts after ssh://"
        raise refuse("NV108", "--on", expected, ", ".join(addresses), "a cluster has one head: name it alone")
    (address,) = addresses
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
    # Where Ray itself looks for it.
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    if not os.environ.get("RAY_AUTH_TOKEN") and not token.is_file():
        host = address.removeprefix("ray://").partition(":")[0]
        expected = f"the token of the cluster; `ray get-auth-token --generate` made it on {host}"
        cure = f"mkdir -p {shlex.quote(str(token.parent))} && scp {host}:.ray/auth_token {shlex.quote(str(token))}"
        yield Refusal("NV346", address, expected, f"no file {token}", cure)
    if util.find_spec("ray") is None:
        where, expected = f"nvllm --on {address}", "the Python package ray"
        yield Refusal("NV512", where, expected, "not installed", extras.installing("ray"))
